"""Name of the ID set in reports. Importing it loads no pydantic."""

ID_NAME = "id"
