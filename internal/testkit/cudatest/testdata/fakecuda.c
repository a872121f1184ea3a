// A small CUDA driver for tests. Device memory is a memfd, so that what one
// process writes another reads, and references count as the real driver counts
// them. It is strict where the real one is: structs are checked, calls that need
// a context fail without one on their thread, and memory without access cannot
// be copied.
//
// FAKECUDA_GPUS: how many (default 2). FAKECUDA_MEMORY: bytes of each (default
// 64 MiB), counted in each process by itself.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
       INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_SUPPORTED = 801 };

#define GRANULARITY (2ul << 20)
#define MAX 8192

struct location { int type, id; };
struct prop {
	int type, handle_types;
	struct location location;
	void *win32;
	struct { unsigned char compression, rdma; unsigned short usage; unsigned char reserved[4]; } flags;
};
struct access { struct location location; int flags; };
_Static_assert(sizeof(struct prop) == 32 && offsetof(struct prop, win32) == 16 && offsetof(struct prop, flags) == 24, "CUmemAllocationProp");
_Static_assert(sizeof(struct access) == 12, "CUmemAccessDesc");

struct handle { int fd, device, made; size_t size; };
struct range { char *addr; size_t size; int mapped, flags; };

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static int initialised, retained;
static struct handle handles[MAX]; // handle n is handles[n-1]; fd 0 where free
static struct range ranges[MAX];
static __thread void *current;
static char fail_name[64];
static int fail_code;

static long setting(const char *name, long otherwise) {
	const char *s = getenv(name);
	return s && *s ? atol(s) : otherwise;
}

static int gpus(void) { return (int)setting("FAKECUDA_GPUS", 2); }
static size_t memory(void) { return (size_t)setting("FAKECUDA_MEMORY", 64l << 20); }

// Tests have the next call of a function fail with code.
void fake_fail(const char *name, int code) {
	snprintf(fail_name, sizeof fail_name, "%s", name);
	fail_code = code;
}

// Tests count: 'h'andles, 'r'eservations, 'm'appings, 'c'ontexts.
int fake_count(int what) {
	int n = 0;
	pthread_mutex_lock(&mu);
	for (int i = 0; i < MAX; i++)
		n += what == 'h' ? handles[i].fd > 0 : what == 'r' ? ranges[i].addr != NULL : what == 'm' ? ranges[i].mapped : 0;
	if (what == 'c')
		n = retained;
	pthread_mutex_unlock(&mu);
	return n;
}

static int begin(const char *name) {
	if (fail_code && !strcmp(name, fail_name)) {
		int code = fail_code;
		fail_code = 0;
		return code;
	}
	return initialised ? OK : NOT_INITIALIZED;
}

#define BEGIN do { int code = begin(__func__); if (code) return code; } while (0)
#define CONTEXT do { if (!current) return INVALID_CONTEXT; } while (0)

int cuInit(unsigned flags) {
	if (flags)
		return INVALID_VALUE;
	if (gpus() == 0)
		return NO_DEVICE;
	initialised = 1;
	return OK;
}

int cuGetErrorName(int code, const char **name) {
	switch (code) {
	case INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; return OK;
	case OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; return OK;
	case NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; return OK;
	case INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; return OK;
	case INVALID_HANDLE: *name = "CUDA_ERROR_INVALID_HANDLE"; return OK;
	case NOT_SUPPORTED: *name = "CUDA_ERROR_NOT_SUPPORTED"; return OK;
	}
	*name = NULL;
	return INVALID_VALUE;
}

int cuDeviceGetCount(int *count) { BEGIN; *count = gpus(); return OK; }

int cuDeviceGet(int *device, int ordinal) {
	BEGIN;
	if (ordinal < 0 || ordinal >= gpus())
		return INVALID_DEVICE;
	*device = ordinal;
	return OK;
}

int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
	BEGIN;
	for (int i = 0; i < 16; i++)
		uuid[i] = (unsigned char)(0x10 * i + device);
	return OK;
}

int cuDeviceGetName(char *name, int len, int device) { BEGIN; snprintf(name, (size_t)len, "Fake GPU %d", device); return OK; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; BEGIN; *bytes = memory(); return OK; }

int cuDevicePrimaryCtxRetain(void **ctx, int device) {
	BEGIN;
	pthread_mutex_lock(&mu);
	retained++;
	pthread_mutex_unlock(&mu);
	*ctx = (void *)(intptr_t)(0x1000 + device);
	return OK;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
	(void)device;
	BEGIN;
	pthread_mutex_lock(&mu);
	retained--;
	pthread_mutex_unlock(&mu);
	return OK;
}

int cuCtxSetCurrent(void *ctx) { BEGIN; current = ctx; return OK; }
int cuCtxSynchronize(void) { BEGIN; CONTEXT; return OK; }

static int good(const struct prop *p) {
	static const struct prop none;
	return p->type == 1 && p->handle_types == 1 && p->location.type == 1 && p->location.id >= 0 && p->location.id < gpus() &&
	       p->win32 == NULL && !memcmp(&p->flags, &none.flags, sizeof p->flags);
}

int cuMemGetAllocationGranularity(size_t *granularity, const struct prop *p, int option) {
	BEGIN;
	if (!good(p) || option != 0)
		return INVALID_VALUE;
	*granularity = GRANULARITY;
	return OK;
}

static int add(unsigned long long *out, int fd, size_t size, int device, int made) {
	for (int i = 0; i < MAX; i++)
		if (handles[i].fd == 0) {
			handles[i] = (struct handle){fd, device, made, size};
			*out = (unsigned long long)i + 1;
			return OK;
		}
	return OUT_OF_MEMORY;
}

int cuMemCreate(unsigned long long *handle, size_t size, const struct prop *p, unsigned long long flags) {
	BEGIN;
	if (!good(p) || flags || size == 0 || size % GRANULARITY)
		return INVALID_VALUE;
	pthread_mutex_lock(&mu);
	size_t used = 0;
	for (int i = 0; i < MAX; i++)
		if (handles[i].made && handles[i].device == p->location.id)
			used += handles[i].size;
	int code = OUT_OF_MEMORY;
	if (used + size <= memory()) {
		int fd = memfd_create("fakecuda", MFD_CLOEXEC);
		code = fd < 0 || ftruncate(fd, (off_t)size) ? OUT_OF_MEMORY : add(handle, fd, size, p->location.id, 1);
	}
	pthread_mutex_unlock(&mu);
	return code;
}

static struct handle *find(unsigned long long handle) {
	return handle >= 1 && handle <= MAX && handles[handle - 1].fd > 0 ? &handles[handle - 1] : NULL;
}

int cuMemRelease(unsigned long long handle) {
	BEGIN;
	int code = INVALID_HANDLE;
	pthread_mutex_lock(&mu);
	struct handle *h = find(handle);
	if (h) {
		close(h->fd);
		memset(h, 0, sizeof *h);
		code = OK;
	}
	pthread_mutex_unlock(&mu);
	return code;
}

int cuMemExportToShareableHandle(int *out, unsigned long long handle, int type, unsigned long long flags) {
	BEGIN;
	if (type != 1 || flags)
		return INVALID_VALUE;
	pthread_mutex_lock(&mu);
	struct handle *h = find(handle);
	int fd = h ? dup(h->fd) : -1; // exec would inherit it
	pthread_mutex_unlock(&mu);
	*out = fd;
	return h ? fd < 0 ? OUT_OF_MEMORY : OK : INVALID_HANDLE;
}

int cuMemImportFromShareableHandle(unsigned long long *handle, void *os, int type) {
	BEGIN;
	CONTEXT;
	struct stat st;
	int from = (int)(intptr_t)os, fd = -1;
	if (type != 1 || fstat(from, &st) || !S_ISREG(st.st_mode) || (fd = fcntl(from, F_DUPFD_CLOEXEC, 0)) < 0)
		return INVALID_VALUE;
	pthread_mutex_lock(&mu);
	int code = add(handle, fd, (size_t)st.st_size, 0, 0);
	pthread_mutex_unlock(&mu);
	return code;
}

static struct range *at(unsigned long long addr, size_t size) {
	for (int i = 0; i < MAX; i++)
		if (ranges[i].addr == (char *)(intptr_t)addr && ranges[i].size == size)
			return &ranges[i];
	return NULL;
}

int cuMemAddressReserve(unsigned long long *addr, size_t size, size_t alignment, unsigned long long wanted, unsigned long long flags) {
	BEGIN;
	if (size == 0 || size % GRANULARITY || alignment || wanted || flags)
		return INVALID_VALUE;
	int code = OUT_OF_MEMORY;
	pthread_mutex_lock(&mu);
	for (int i = 0; i < MAX; i++)
		if (!ranges[i].addr) {
			void *p = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
			if (p != MAP_FAILED) {
				ranges[i] = (struct range){p, size, 0, 0};
				*addr = (unsigned long long)(intptr_t)p;
				code = OK;
			}
			break;
		}
	pthread_mutex_unlock(&mu);
	return code;
}

int cuMemAddressFree(unsigned long long addr, size_t size) {
	BEGIN;
	int code = INVALID_VALUE;
	pthread_mutex_lock(&mu);
	struct range *r = at(addr, size);
	if (r && !r->mapped) {
		munmap(r->addr, size);
		memset(r, 0, sizeof *r);
		code = OK;
	}
	pthread_mutex_unlock(&mu);
	return code;
}

int cuMemMap(unsigned long long addr, size_t size, size_t offset, unsigned long long handle, unsigned long long flags) {
	BEGIN;
	CONTEXT;
	int code = INVALID_VALUE;
	pthread_mutex_lock(&mu);
	struct range *r = at(addr, size);
	struct handle *h = find(handle);
	if (r && h && !r->mapped && !offset && !flags && size <= h->size &&
	    mmap(r->addr, size, PROT_NONE, MAP_SHARED | MAP_FIXED, h->fd, 0) != MAP_FAILED) {
		r->mapped = 1;
		code = OK;
	}
	pthread_mutex_unlock(&mu);
	return code;
}

int cuMemUnmap(unsigned long long addr, size_t size) {
	BEGIN;
	CONTEXT;
	int code = INVALID_VALUE;
	pthread_mutex_lock(&mu);
	struct range *r = at(addr, size);
	if (r && r->mapped) {
		mmap(r->addr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
		r->mapped = r->flags = 0;
		code = OK;
	}
	pthread_mutex_unlock(&mu);
	return code;
}

int cuMemSetAccess(unsigned long long addr, size_t size, const struct access *a, size_t count) {
	BEGIN;
	CONTEXT;
	int code = INVALID_VALUE;
	pthread_mutex_lock(&mu);
	struct range *r = at(addr, size);
	if (r && r->mapped && count == 1 && a->location.type == 1 && (a->flags == 1 || a->flags == 3)) {
		mprotect(r->addr, size, a->flags == 3 ? PROT_READ | PROT_WRITE : PROT_READ);
		r->flags = a->flags;
		code = OK;
	}
	pthread_mutex_unlock(&mu);
	return code;
}

// holds tells whether a copy of n bytes at addr is allowed; mu is held.
static int holds(unsigned long long addr, size_t n, int flag) {
	char *p = (char *)(intptr_t)addr;
	for (int i = 0; i < MAX; i++)
		if (ranges[i].mapped && (ranges[i].flags & flag) == flag && p >= ranges[i].addr && p + n <= ranges[i].addr + ranges[i].size)
			return 1;
	return 0;
}

int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t n) {
	BEGIN;
	CONTEXT;
	pthread_mutex_lock(&mu);
	int ok = holds(to, n, 3);
	if (ok)
		memcpy((void *)(intptr_t)to, from, n);
	pthread_mutex_unlock(&mu);
	return ok ? OK : INVALID_VALUE;
}

int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t n) {
	BEGIN;
	CONTEXT;
	pthread_mutex_lock(&mu);
	int ok = holds(from, n, 1);
	if (ok)
		memcpy(to, (void *)(intptr_t)from, n);
	pthread_mutex_unlock(&mu);
	return ok ? OK : INVALID_VALUE;
}

#ifndef WITHOUT_INFO
int cuMemGetInfo_v2(size_t *free, size_t *total) {
	BEGIN;
	CONTEXT;
	*free = *total = memory();
	return OK;
}
#endif
