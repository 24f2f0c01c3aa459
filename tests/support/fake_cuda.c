// A CUDA runtime without a GPU, which takes the place of NVIDIA's under torch's own CUDA build (LD_PRELOAD).
//
// Device memory is the host's, kernels do nothing, and everything that is asked for is counted by kind, name and device. What is
// not here is a stub that counts itself (`support/fake_cuda.py` writes those). GPUS and MEGABYTES say how many devices there are,
// and how much memory each has.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { OK = 0, OUT_OF_MEMORY = 2, NO_SUCH_DEVICE = 101, NOT_IN_CAPTURE = 900 };
enum { UNREGISTERED, PINNED, ON_DEVICE, KINDS_OF_MEMORY };
enum { EVENTS = 1 << 14, KERNELS = 1 << 18, BLOCKS = 1 << 16, DEVICES = 8 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int device, last_error;

static long number(const char *name, long otherwise) {
  const char *text = getenv(name);
  return text ? atol(text) : otherwise;
}

// --- what was asked for: an open hash table of lines "kind, name, device"

static struct { char *line; long times; } events[EVENTS];

static uint64_t hash(const char *text) {
  uint64_t value = 14695981039346656037u;
  while (*text) value = (value ^ (unsigned char)*text++) * 1099511628211u;
  return value;
}

void fake_count(const char *kind, const char *name) {
  char line[2048];
  snprintf(line, sizeof line, "%s\t%s\t%d", kind, name, device);
  pthread_mutex_lock(&lock);
  unsigned i = hash(line) % EVENTS;
  while (events[i].line && strcmp(events[i].line, line)) i = (i + 1) % EVENTS;
  if (!events[i].line) events[i].line = strdup(line);
  events[i].times++;
  pthread_mutex_unlock(&lock);
}

void fake_reset(void) {
  for (int i = 0; i < EVENTS; i++) events[i].times = 0;
}

void fake_write(const char *path) {
  FILE *file = fopen(path, "w");
  for (int i = 0; i < EVENTS; i++)
    if (events[i].times) fprintf(file, "%ld\t%s\n", events[i].times, events[i].line);
  fclose(file);
}

// --- kernels: torch registers the address of each with its name before main

typedef struct { unsigned x, y, z; } Size3;
typedef struct { Size3 grid, block; size_t shared; void *stream; } Launch;
static struct { const void *address; const char *name; } kernels[KERNELS];
static __thread Launch next_launch;

static unsigned kernel_at(const void *address) {
  unsigned i = ((uintptr_t)address >> 2) * 2654435761u % KERNELS;
  while (kernels[i].address && kernels[i].address != address) i = (i + 1) % KERNELS;
  return i;
}

void **__cudaRegisterFatBinary(void *binary) { static void *handle; return &handle; }
void __cudaRegisterFatBinaryEnd(void **handle) {}
void __cudaUnregisterFatBinary(void **handle) {}
void __cudaRegisterVar(void **handle, char *address, char *on_device, const char *name) {}
void __cudaRegisterFunction(void **handle, const char *address, char *on_device, const char *name) {
  unsigned i = kernel_at(address);
  kernels[i].address = address;
  kernels[i].name = name;
}

// --- streams and capture: what would wait, or copies from memory that may change, is refused while a graph is made

typedef struct { long nodes; } Graph;
static void *captured_stream;
static Graph *graph;

static void (*hears)(void);  // is called whenever the processor waits
void fake_hear(void (*what)(void)) { hears = what; }

int fake_wait(const char *what) {
  fake_count("wait", what);
  if (hears) hears();
  return graph ? NOT_IN_CAPTURE : OK;
}

static int queued(void *stream, const char *kind, const char *name) {
  fake_count(kind, name);
  if (graph && stream == captured_stream) graph->nodes++;
  return OK;
}

int __cudaGetKernel(const void **kernel, const void *address) { *kernel = address; return OK; }
int cudaGetFuncBySymbol(const void **kernel, const void *address) { *kernel = address; return OK; }
unsigned __cudaPushCallConfiguration(Size3 grid, Size3 block, size_t shared, void *stream) {
  next_launch = (Launch){grid, block, shared, stream};
  return OK;
}
int __cudaPopCallConfiguration(Size3 *grid, Size3 *block, size_t *shared, void **stream) {
  *grid = next_launch.grid, *block = next_launch.block, *shared = next_launch.shared, *stream = next_launch.stream;
  return OK;
}
int cudaLaunchKernel(const void *kernel, Size3 grid, Size3 block, void **arguments, size_t shared, void *stream) {
  const char *name = kernels[kernel_at(kernel)].name;
  return queued(stream, "launch", name ? name : "?");
}
int __cudaLaunchKernel(const void *kernel, Size3 grid, Size3 block, void **arguments, size_t shared, void *stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}
int cudaLaunchKernelExC(const Launch *launch, const void *kernel, void **arguments) {
  return cudaLaunchKernel(kernel, launch->grid, launch->block, arguments, launch->shared, launch->stream);
}
int cuLaunchKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned shared, void *stream) {
  return queued(stream, "launch", "compiled at run time");
}
int cublasLtMatmul(void *handle, void *of, const void *alpha, const void *a, void *la, const void *b, void *lb, const void *beta,
                   const void *c, void *lc, void *d, void *ld, const void *how, void *room, size_t size, void *stream) {
  return queued(stream, "launch", "cublasLtMatmul");
}

int cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority) { *stream = calloc(1, 8); return OK; }
int cudaStreamCreateWithFlags(void **stream, unsigned flags) { *stream = calloc(1, 8); return OK; }
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0, *greatest = -5; return OK; }
int cudaStreamSynchronize(void *stream) { return fake_wait("stream"); }
int cudaDeviceSynchronize(void) { return fake_wait("device"); }
int cudaEventSynchronize(void *event) { return fake_wait("event"); }
int cudaEventCreate(void **event) { *event = calloc(1, 8); return OK; }
int cudaEventCreateWithFlags(void **event, unsigned flags) { return cudaEventCreate(event); }
int cudaEventElapsedTime(float *milliseconds, void *begin, void *end) { *milliseconds = 1; return OK; }
int cudaStreamBeginCapture(void *stream, int mode) { captured_stream = stream, graph = calloc(1, sizeof *graph); return OK; }
int cudaStreamIsCapturing(void *stream, int *status) { *status = graph && stream == captured_stream; return OK; }
int cudaStreamGetCaptureInfo(void *stream, int *status, unsigned long long *id, void **of, void **on, void **edges, size_t *count) {
  if (status) *status = graph && stream == captured_stream;
  if (id) *id = 1;
  if (of) *of = graph;
  if (on) *on = 0;
  if (edges) *edges = 0;
  if (count) *count = 0;
  return OK;
}
int cudaStreamEndCapture(void *stream, void **made) { *made = graph, graph = 0; return OK; }
int cudaGraphGetNodes(Graph *of, void *nodes, size_t *count) { *count = of->nodes; return OK; }
int cudaGraphInstantiate(void **run, void *of, unsigned long long flags) { *run = of; return OK; }
int cudaGraphInstantiateWithFlags(void **run, void *of, unsigned long long flags) { *run = of; return OK; }

// --- memory

static struct { char *begin; size_t size; int kind, device; } blocks[BLOCKS];
static int last_block;
static size_t used[DEVICES];

static size_t total(void) { return (size_t)number("MEGABYTES", 16384) << 20; }

static int allocate(void **address, size_t size, int kind) {
  if (kind == ON_DEVICE && used[device] + size > total()) {
    *address = 0;
    return last_error = OUT_OF_MEMORY;
  }
  *address = mmap(0, size + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  pthread_mutex_lock(&lock);
  int i = 0;
  while (i < last_block && blocks[i].begin) i++;
  if (i == last_block) last_block++;
  blocks[i].begin = *address, blocks[i].size = size, blocks[i].kind = kind, blocks[i].device = device;
  if (kind == ON_DEVICE) used[device] += size;
  pthread_mutex_unlock(&lock);
  fake_count("allocation", kind == ON_DEVICE ? "device" : "pinned");
  return OK;
}

static int block_at(const void *address) {
  for (int i = 0; i < last_block; i++)
    if (blocks[i].begin && (char *)address >= blocks[i].begin && (char *)address < blocks[i].begin + blocks[i].size) return i;
  return -1;
}

static int kind_at(const void *address) {
  int i = block_at(address);
  return i < 0 ? UNREGISTERED : blocks[i].kind;
}

static int release(void *address) {
  int i = block_at(address);
  if (i < 0) return OK;
  pthread_mutex_lock(&lock);
  munmap(blocks[i].begin, blocks[i].size + 4096);
  if (blocks[i].kind == ON_DEVICE) used[blocks[i].device] -= blocks[i].size;
  blocks[i].begin = 0;
  pthread_mutex_unlock(&lock);
  return OK;
}

int cudaMalloc(void **address, size_t size) { return allocate(address, size, ON_DEVICE); }
int cudaMallocAsync(void **address, size_t size, void *stream) { return allocate(address, size, ON_DEVICE); }
int cudaHostAlloc(void **address, size_t size, unsigned flags) { return allocate(address, size, PINNED); }
int cudaMallocHost(void **address, size_t size) { return allocate(address, size, PINNED); }
int cudaFree(void *address) { return release(address); }
int cudaFreeAsync(void *address, void *stream) { return release(address); }
int cudaFreeHost(void *address) { return release(address); }
int cudaMemGetInfo(size_t *left, size_t *all) { *all = total(), *left = *all > used[device] ? *all - used[device] : 0; return OK; }

typedef struct { int kind, device; void *on_device, *on_host; } Pointer;
int cudaPointerGetAttributes(Pointer *about, const void *address) {
  int i = block_at(address);
  *about = (Pointer){i < 0 ? UNREGISTERED : blocks[i].kind, i < 0 ? 0 : blocks[i].device, (void *)address, (void *)address};
  return OK;
}

static int copy(void *to, const void *from, size_t size, void *stream, int waits) {
  static const char *names[KINDS_OF_MEMORY] = {"pageable", "pinned", "device"};
  int source = kind_at(from), target = kind_at(to);
  char name[64];
  snprintf(name, sizeof name, "%s to %s%s", names[source], names[target], waits ? ", waits" : "");
  memmove(to, from, size);
  queued(stream, source == ON_DEVICE && target == ON_DEVICE ? "launch" : "copy", name);
  return graph && (source == UNREGISTERED || target == UNREGISTERED || waits) ? NOT_IN_CAPTURE : OK;
}

int cudaMemcpy(void *to, const void *from, size_t size, int way) { return copy(to, from, size, 0, 1); }
int cudaMemcpyAsync(void *to, const void *from, size_t size, int way, void *stream) { return copy(to, from, size, stream, 0); }
int cudaMemcpyPeerAsync(void *to, int a, const void *from, int b, size_t size, void *stream) { return copy(to, from, size, stream, 0); }
int cudaMemsetAsync(void *at, int byte, size_t size, void *stream) { memset(at, byte, size); return queued(stream, "launch", "memset"); }
int cudaMemset(void *at, int byte, size_t size) { return cudaMemsetAsync(at, byte, size, 0); }
int cudaGetSymbolAddress(void **address, const void *symbol) { *address = (void *)symbol; return OK; }

// --- the devices, which are like an A100; each that is made the current one is begun, as since CUDA 12

static int begun[DEVICES];
int cudaGetDeviceCount(int *count) { *count = number("GPUS", 1); return OK; }
int cudaGetDevice(int *index) { *index = device; return OK; }
int cudaSetDevice(int index) {
  if (index >= number("GPUS", 1)) return last_error = NO_SUCH_DEVICE;
  device = index;
  begun[index] = 1;
  return OK;
}
int cudaRuntimeGetVersion(int *version) { *version = number("CUDA", 13000); return OK; }
int cudaDriverGetVersion(int *version) { return cudaRuntimeGetVersion(version); }
int cudaDeviceCanAccessPeer(int *can, int one, int other) { *can = 0; return OK; }
int cudaDeviceGetAttribute(int *value, int which, int of) {
  switch (which) {  // the numbers of cudaDeviceAttr
  case 1: case 2: case 3: *value = 1024; break;          // threads of a block
  case 4: *value = 64; break;
  case 5: *value = 2147483647; break;                    // blocks of a grid
  case 6: case 7: *value = 65535; break;
  case 8: *value = 49152; break;                         // shared memory of a block
  case 10: *value = 32; break;                           // threads of a warp
  case 12: case 82: *value = 65536; break;               // registers
  case 16: *value = 108; break;                          // multiprocessors
  case 38: *value = 41943040; break;                     // second-level cache
  case 39: *value = 2048; break;                         // threads of a multiprocessor
  case 75: *value = 8; break;                            // compute capability
  case 76: *value = 0; break;
  case 81: *value = 167936; break;
  case 97: *value = 166912; break;
  case 106: *value = 32; break;
  default: *value = 1;
  }
  return OK;
}
// What CUDA 13 says of a device, in its order; CUDA 12 has four more fields that torch does not read, and which shift all that follow.
typedef struct {
  char name[256], uuid[16], luid[8];
  unsigned node_mask;
  size_t memory, shared_of_block;
  int registers_of_block, warp;
  size_t pitch;
  int threads_of_block, block[3], grid[3];
  size_t constant;
  int major, minor;
  size_t texture[2];
  int multiprocessors, integrated, maps_host, textures[41], concurrent, ecc, bus, slot, domain, tcc, engines, unified, bus_width, cache,
      persisting, threads, priorities, caches[2];
  size_t shared;
  int registers, managed, board[2], atomics, pageable, concurrent_managed, preemption, host_pointers, cooperative;
  size_t shared_optin;
  int rest[256];
} Properties;
int cudaGetDeviceProperties(char *about, int of) {
  Properties known = {.name = "Unreal GPU", .memory = total(), .shared_of_block = 49152, .registers_of_block = 65536, .warp = 32,
    .threads_of_block = 1024, .block = {1024, 1024, 64}, .grid = {2147483647, 65535, 65535}, .major = 8, .multiprocessors = 108,
    .bus = of, .threads = 2048, .shared = 167936, .registers = 65536, .shared_optin = 166912, .cache = 41943040};
  memcpy(about, &known, offsetof(Properties, rest));
  return OK;
}
int cudaFuncGetAttributes(size_t *about, const void *kernel) {
  memset(about, 0, 64);
  int *more = (int *)(about + 3);
  more[0] = 1024, more[1] = 32, more[2] = more[3] = 80;
  return OK;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel, int size, size_t shared) { *blocks = 2; return OK; }
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *kernel, int size, size_t shared, unsigned flags) {
  *blocks = 2;
  return OK;
}
int cudaGetLastError(void) { int error = last_error; last_error = OK; return error; }
int cudaPeekAtLastError(void) { return last_error; }
const char *cudaGetErrorString(int error) {
  return error == OUT_OF_MEMORY ? "out of memory" : error == NOT_IN_CAPTURE ? "operation not permitted when stream is capturing" : "?";
}
const char *cudaGetErrorName(int error) { return cudaGetErrorString(error); }
static int nothing(void) { return OK; }
int cudaGetDriverEntryPointByVersion(const char *name, void **found, unsigned version, unsigned long long flags, int *status) {
  void *here = dlsym(RTLD_DEFAULT, name);
  *found = here ? here : (void *)nothing;
  if (status) *status = 0;
  return OK;
}
int cuGetErrorString(int error, const char **text) { *text = "?"; return OK; }
int cuDevicePrimaryCtxGetState(int of, unsigned *flags, int *active) { *flags = 0, *active = begun[of]; return OK; }
int cuCtxGetCurrent(void **context) { *context = &device; return OK; }

// --- libraries of products: handles that are not null, and one way to compute

static long handle[64];
int cublasCreate_v2(void **made) { *made = handle; return OK; }
int cublasGetPointerMode_v2(void *of, int *mode) { *mode = 0; return OK; }
int cublasGetMathMode(void *of, int *mode) { *mode = 0; return OK; }
size_t cublasLtGetVersion(void) { return 130000; }
int cublasLtCreate(void **made) { *made = handle; return OK; }
int cublasLtMatmulDescCreate(void **made, int type, int scale) { *made = handle; return OK; }
int cublasLtMatrixLayoutCreate(void **made, int type, uint64_t rows, uint64_t columns, int64_t step) { *made = handle; return OK; }
int cublasLtMatmulPreferenceCreate(void **made) { *made = handle; return OK; }
int cublasLtMatmulAlgoGetHeuristic(void *h, void *d, void *a, void *b, void *c, void *e, void *p, int most, void *ways, int *count) {
  memset(ways, 0, 64);
  *count = 1;
  return OK;
}
int cusolverDnCreate(void **made) { *made = handle; return OK; }
