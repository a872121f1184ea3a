/*
 * A stand-in for libnvidia-ml.so that tests load by dlopen. It does what the
 * file beside it says: for /x/libnvidia-ml.so.1 that is
 * /x/libnvidia-ml.so.1.state, read anew at every call, with a line for each
 * thing that is not as usual:
 *
 *   init=9                    nvmlInit returns 9 (the driver is not loaded)
 *   fail=999                  every call but nvmlInit returns 999
 *   hang=nvmlDeviceGetUUID    that function does not return while the line is there
 *   exit=nvmlDeviceGetUUID    that function ends the process
 *   gpu0.hang= .exit=         the same for calls on one GPU; * stands for every function
 *   gpu0.crash= .abort=       calls on that GPU end in SIGSEGV, in SIGABRT
 *   gpu0.slow=40              every call on that GPU takes 40 ms
 *   wait=999                  nvmlEventSetWait returns that
 *   gpu0.register=999         nvmlDeviceRegisterEvents returns that
 *   driver=570.86.15  cuda=12080
 *   count=2                   how many GPUs the driver finds when it is initialised
 *   gpu0.lost=1               calls on that GPU say that it is lost
 *   gpu0.error=999            they return that
 *   gpu0.uuid= .name= .bus= .mem=MiB .used=MiB .ecc= .remap=1 .remapfailed=1 .sram=1
 *   gpu0.limit=MILLIWATTS     the power limit
 *   gpu0.throttle=BITS        why the clocks are below what they could be
 *   gpu0.recovery=1           the recovery action; without it: not supported
 *   gpu0.peer=1               NVLink joins it to that GPU
 *   gpu0.switch=1             NVLink joins it to a switch
 *   gpu0.mig=2                it is split into that many instances
 *   xid=7 0 79                event number 7: XID 79 on GPU 0. An event set
 *                             delivers every number above the one that stood
 *                             there when the set was made, once. Two more
 *                             numbers name a GPU instance and a compute
 *                             instance.
 *
 * Declarations are our own, from NVML's documented ABI.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int ret_t;
enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, TIMEOUT = 10, LOST = 15 };
#define MAX_GPUS 16
#define MAX_MIG 7

typedef struct { int gpu, mig; } device; /* mig: -1 for the whole GPU */
static device gpus[MAX_GPUS], parts[MAX_GPUS][MAX_MIG];
static int initialised, found;

typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned int gpu, memory; } utilization;
typedef struct { unsigned long long l1, l2, device, registers; } ecc_counts;
typedef struct { unsigned int version; unsigned long long counts[11]; unsigned int threshold_exceeded; } sram_status;
typedef struct { char legacy[16]; unsigned int domain, bus, device, id, subsystem; char bus_id[32]; } pci_info;
typedef struct { device *dev; unsigned long long type, data; unsigned int gi, ci; } event_data;
typedef struct { unsigned int id, scope; long long at, latency; unsigned int type; ret_t ret; unsigned long long value; } field_value;
typedef struct { unsigned int sm, ce, dec, enc, jpeg, ofa, gi_slices, ci_slices; unsigned long long mem_mb; } attributes;

/* get reads the value of a key; 0 if there is none. */
static int get(const char *key, char *out, size_t size) {
	Dl_info self;
	char path[4096], line[512];
	int there = 0;
	if (!dladdr((void *)get, &self)) return 0;
	snprintf(path, sizeof path, "%s.state", self.dli_fname);
	FILE *f = fopen(path, "re");
	if (!f) return 0;
	size_t n = strlen(key);
	while (fgets(line, sizeof line, f)) {
		line[strcspn(line, "\n")] = 0;
		if (strncmp(line, key, n) == 0 && line[n] == '=') {
			snprintf(out, size, "%s", line + n + 1);
			there = 1;
		}
	}
	fclose(f);
	return there;
}

static long number(const char *key, long otherwise) {
	char v[64];
	return get(key, v, sizeof v) ? strtol(v, NULL, 0) : otherwise;
}

static int of(int gpu, const char *what, char *out, size_t size) {
	char key[64];
	snprintf(key, sizeof key, "gpu%d.%s", gpu, what);
	return get(key, out, size);
}

static long number_of(int gpu, const char *what, long otherwise) {
	char v[64];
	return of(gpu, what, v, sizeof v) ? strtol(v, NULL, 0) : otherwise;
}

/* told says whether a GPU is told to do something in a function. */
static int told(int gpu, const char *what, const char *name) {
	char v[64];
	return of(gpu, what, v, sizeof v) && (strcmp(v, name) == 0 || strcmp(v, "*") == 0);
}

/* enter is the start of every function. */
static ret_t enter(const char *name) {
	char v[64];
	if (get("exit", v, sizeof v) && strcmp(v, name) == 0) {
		fprintf(stderr, "fake NVML: told to exit in %s\n", name);
		_exit(127);
	}
	while (get("hang", v, sizeof v) && strcmp(v, name) == 0) usleep(10000);
	if (strcmp(name, "nvmlInit_v2") == 0) return OK;
	if (!initialised) return UNINITIALIZED;
	return number("fail", OK);
}

static ret_t on(const char *name, device *d) {
	ret_t r = enter(name);
	if (r) return r;
	if (!d) return INVALID;
	if (told(d->gpu, "exit", name)) {
		fprintf(stderr, "fake NVML: told to exit in %s on GPU %d\n", name, d->gpu);
		_exit(127);
	}
	if (told(d->gpu, "crash", name)) *(volatile int *)8 = 1;
	if (told(d->gpu, "abort", name)) abort();
	while (told(d->gpu, "hang", name)) usleep(10000);
	usleep(number_of(d->gpu, "slow", 0) * 1000);
	if (number_of(d->gpu, "lost", 0)) return LOST;
	return number_of(d->gpu, "error", OK);
}

static ret_t text(const char *from, char *to, unsigned int size) {
	if (strlen(from) + 1 > size) return 7; /* insufficient size */
	strcpy(to, from);
	return OK;
}

const char *nvmlErrorString(ret_t r) {
	static char s[32];
	snprintf(s, sizeof s, "fake error %d", r);
	return s;
}

ret_t nvmlInit_v2(void) {
	ret_t r = enter("nvmlInit_v2");
	if (r) return r;
	if ((r = number("init", OK))) return r;
	found = number("count", 1);
	if (found > MAX_GPUS) found = MAX_GPUS;
	for (int i = 0; i < MAX_GPUS; i++) {
		gpus[i] = (device){i, -1};
		for (int j = 0; j < MAX_MIG; j++) parts[i][j] = (device){i, j};
	}
	initialised = 1;
	return OK;
}

ret_t nvmlShutdown(void) { initialised = 0; return OK; }

ret_t nvmlSystemGetDriverVersion(char *v, unsigned int n) {
	char s[64] = "570.86.15";
	ret_t r = enter("nvmlSystemGetDriverVersion");
	get("driver", s, sizeof s);
	return r ? r : text(s, v, n);
}

ret_t nvmlSystemGetCudaDriverVersion(int *v) {
	*v = number("cuda", 12080);
	return enter("nvmlSystemGetCudaDriverVersion");
}

ret_t nvmlDeviceGetCount_v2(unsigned int *n) {
	*n = found;
	return enter("nvmlDeviceGetCount_v2");
}

ret_t nvmlDeviceGetHandleByIndex_v2(unsigned int i, device **d) {
	if (i >= (unsigned int)found) return INVALID;
	ret_t r = on("nvmlDeviceGetHandleByIndex_v2", &gpus[i]);
	*d = &gpus[i];
	return r;
}

static void bus_of(int gpu, char *s, size_t size);

ret_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus, device **d) {
	char s[64];
	for (int i = 0; i < found; i++) {
		bus_of(i, s, sizeof s);
		if (strcmp(s, bus) == 0) {
			*d = &gpus[i];
			return on("nvmlDeviceGetHandleByPciBusId_v2", &gpus[i]);
		}
	}
	ret_t r = enter("nvmlDeviceGetHandleByPciBusId_v2");
	return r ? r : NOT_FOUND;
}

ret_t nvmlDeviceGetUUID(device *d, char *v, unsigned int n) {
	char s[96];
	ret_t r = on("nvmlDeviceGetUUID", d);
	if (r) return r;
	if (d->mig >= 0)
		snprintf(s, sizeof s, "MIG-00000000-0000-4000-a%03x-%012x", d->mig, d->gpu);
	else if (!of(d->gpu, "uuid", s, sizeof s))
		snprintf(s, sizeof s, "GPU-00000000-0000-4000-9000-%012x", d->gpu);
	return text(s, v, n);
}

ret_t nvmlDeviceGetName(device *d, char *v, unsigned int n) {
	char s[128] = "NVIDIA H100 80GB HBM3";
	ret_t r = on("nvmlDeviceGetName", d);
	if (r) return r;
	of(d->gpu, "name", s, sizeof s - 20);
	if (d->mig >= 0) strcat(s, " MIG 1g.10gb");
	return text(s, v, n);
}

static void bus_of(int gpu, char *s, size_t size) {
	if (!of(gpu, "bus", s, size)) snprintf(s, size, "00000000:%02X:00.0", 0x1B + gpu * 0x10);
}

ret_t nvmlDeviceGetPciInfo_v3(device *d, pci_info *p) {
	ret_t r = on("nvmlDeviceGetPciInfo_v3", d);
	if (r) return r;
	memset(p, 0, sizeof *p);
	bus_of(d->gpu, p->bus_id, sizeof p->bus_id);
	return OK;
}

static memory memory_of(device *d) {
	memory m;
	m.total = (unsigned long long)number_of(d->gpu, "mem", d->mig >= 0 ? 9856 : 81559) << 20;
	m.used = (unsigned long long)number_of(d->gpu, "used", 1024) << 20;
	m.free = m.total - m.used;
	return m;
}

ret_t nvmlDeviceGetMemoryInfo(device *d, memory *m) {
	ret_t r = on("nvmlDeviceGetMemoryInfo", d);
	if (!r) *m = memory_of(d);
	return r;
}

ret_t nvmlDeviceGetMinorNumber(device *d, unsigned int *n) {
	ret_t r = on("nvmlDeviceGetMinorNumber", d);
	if (!r) *n = d->gpu;
	return r;
}

ret_t nvmlDeviceGetCudaComputeCapability(device *d, int *major, int *minor) {
	*major = 9, *minor = 0;
	return on("nvmlDeviceGetCudaComputeCapability", d);
}

ret_t nvmlDeviceGetArchitecture(device *d, unsigned int *a) {
	*a = 9; /* Hopper */
	return on("nvmlDeviceGetArchitecture", d);
}

ret_t nvmlDeviceGetEnforcedPowerLimit(device *d, unsigned int *mw) {
	ret_t r = on("nvmlDeviceGetEnforcedPowerLimit", d);
	if (!r) *mw = number_of(d->gpu, "limit", 700000);
	return r;
}

ret_t nvmlDeviceGetMaxClockInfo(device *d, unsigned int type, unsigned int *mhz) {
	*mhz = type == 2 ? 2619 : 1980;
	return on("nvmlDeviceGetMaxClockInfo", d);
}

ret_t nvmlDeviceGetClockInfo(device *d, unsigned int type, unsigned int *mhz) {
	*mhz = type == 2 ? 2000 : 345;
	return on("nvmlDeviceGetClockInfo", d);
}

ret_t nvmlDeviceGetUtilizationRates(device *d, utilization *u) {
	*u = (utilization){37, 21};
	return on("nvmlDeviceGetUtilizationRates", d);
}

ret_t nvmlDeviceGetPowerUsage(device *d, unsigned int *mw) {
	*mw = 119600;
	return on("nvmlDeviceGetPowerUsage", d);
}

ret_t nvmlDeviceGetTemperature(device *d, unsigned int sensor, unsigned int *c) {
	*c = 41;
	return on("nvmlDeviceGetTemperature", d);
}

ret_t nvmlDeviceGetTotalEccErrors(device *d, unsigned int type, unsigned int counter, unsigned long long *n) {
	ret_t r = on("nvmlDeviceGetTotalEccErrors", d);
	if (!r) *n = number_of(d->gpu, "ecc", 0);
	return r;
}

ret_t nvmlDeviceGetSramEccErrorStatus(device *d, sram_status *s) {
	ret_t r = on("nvmlDeviceGetSramEccErrorStatus", d);
	if (!r) s->threshold_exceeded = number_of(d->gpu, "sram", 0);
	return r;
}

ret_t nvmlDeviceGetRemappedRows(device *d, unsigned int *corr, unsigned int *unc, unsigned int *pending, unsigned int *failed) {
	ret_t r = on("nvmlDeviceGetRemappedRows", d);
	if (r) return r;
	*corr = 2, *unc = 1;
	*pending = number_of(d->gpu, "remap", 0);
	*failed = number_of(d->gpu, "remapfailed", 0);
	return OK;
}

ret_t nvmlDeviceGetFieldValues(device *d, int n, field_value *v) {
	ret_t r = on("nvmlDeviceGetFieldValues", d);
	if (r) return r;
	for (int i = 0; i < n; i++) {
		char s[16];
		v[i].ret = UNSUPPORTED;
		if (v[i].id == 230 && of(d->gpu, "recovery", s, sizeof s)) {
			v[i].ret = OK;
			v[i].type = 1; /* unsigned int */
			v[i].value = (unsigned int)atoi(s);
		}
		switch (v[i].id) {
		case 82: v[i].ret = OK, v[i].type = 1, v[i].value = 55; break;          /* memory temperature */
		case 138: v[i].ret = OK, v[i].type = 3, v[i].value = 1000; break;       /* NVLink sent, KiB */
		case 139: v[i].ret = OK, v[i].type = 3, v[i].value = 2000; break;       /* NVLink received, KiB */
		case 197: v[i].ret = OK, v[i].type = 3, v[i].value = 5000000000; break; /* PCIe sent */
		case 198: v[i].ret = OK, v[i].type = 1, v[i].value = 7000; break;       /* PCIe received */
		}
	}
	return OK;
}

typedef struct { unsigned long long total, free, used; } bar1_memory;

ret_t nvmlDeviceGetBAR1MemoryInfo(device *d, bar1_memory *m) {
	*m = (bar1_memory){131072ull << 20, 131062ull << 20, 10ull << 20};
	return on("nvmlDeviceGetBAR1MemoryInfo", d);
}

ret_t nvmlDeviceGetMaxPcieLinkGeneration(device *d, unsigned int *v) {
	*v = 5;
	return on("nvmlDeviceGetMaxPcieLinkGeneration", d);
}

ret_t nvmlDeviceGetMaxPcieLinkWidth(device *d, unsigned int *v) {
	*v = 16;
	return on("nvmlDeviceGetMaxPcieLinkWidth", d);
}

ret_t nvmlDeviceGetDisplayMode(device *d, unsigned int *v) {
	*v = 0;
	return on("nvmlDeviceGetDisplayMode", d);
}

ret_t nvmlDeviceGetPersistenceMode(device *d, unsigned int *v) {
	*v = 1;
	return on("nvmlDeviceGetPersistenceMode", d);
}

ret_t nvmlDeviceGetEncoderUtilization(device *d, unsigned int *v, unsigned int *period) {
	*v = 3, *period = 100000;
	return on("nvmlDeviceGetEncoderUtilization", d);
}

ret_t nvmlDeviceGetDecoderUtilization(device *d, unsigned int *v, unsigned int *period) {
	*v = 4, *period = 100000;
	return on("nvmlDeviceGetDecoderUtilization", d);
}

ret_t nvmlDeviceGetTotalEnergyConsumption(device *d, unsigned long long *mj) {
	*mj = 123456;
	return on("nvmlDeviceGetTotalEnergyConsumption", d);
}

ret_t nvmlDeviceGetPcieReplayCounter(device *d, unsigned int *n) {
	*n = 6;
	return on("nvmlDeviceGetPcieReplayCounter", d);
}

ret_t nvmlDeviceGetCurrentClocksThrottleReasons(device *d, unsigned long long *bits) {
	ret_t r = on("nvmlDeviceGetCurrentClocksThrottleReasons", d);
	if (!r) *bits = number_of(d->gpu, "throttle", 0);
	return r;
}

ret_t nvmlDeviceGetDetailedEccErrors(device *d, unsigned int type, unsigned int counter, ecc_counts *e) {
	*e = (ecc_counts){1, 2, 3, 4};
	return on("nvmlDeviceGetDetailedEccErrors", d);
}

ret_t nvmlDeviceGetNvLinkState(device *d, unsigned int link, unsigned int *active) {
	ret_t r = on("nvmlDeviceGetNvLinkState", d);
	if (r) return r;
	if (link > 0) return INVALID;
	*active = number_of(d->gpu, "peer", -1) >= 0 || number_of(d->gpu, "switch", 0);
	return OK;
}

ret_t nvmlDeviceGetNvLinkRemoteDeviceType(device *d, unsigned int link, unsigned int *type) {
	ret_t r = on("nvmlDeviceGetNvLinkRemoteDeviceType", d);
	if (!r) *type = number_of(d->gpu, "switch", 0) ? 2 : 0;
	return r;
}

ret_t nvmlDeviceGetNvLinkRemotePciInfo_v2(device *d, unsigned int link, pci_info *p) {
	ret_t r = on("nvmlDeviceGetNvLinkRemotePciInfo_v2", d);
	if (r) return r;
	memset(p, 0, sizeof *p);
	bus_of(number_of(d->gpu, "peer", 0), p->bus_id, sizeof p->bus_id);
	return OK;
}

ret_t nvmlDeviceGetMigMode(device *d, unsigned int *now, unsigned int *pending) {
	ret_t r = on("nvmlDeviceGetMigMode", d);
	if (!r) *now = *pending = number_of(d->gpu, "mig", -1) >= 0;
	return r;
}

ret_t nvmlDeviceGetMaxMigDeviceCount(device *d, unsigned int *n) {
	*n = MAX_MIG;
	return on("nvmlDeviceGetMaxMigDeviceCount", d);
}

ret_t nvmlDeviceGetMigDeviceHandleByIndex(device *d, unsigned int i, device **part) {
	ret_t r = on("nvmlDeviceGetMigDeviceHandleByIndex", d);
	if (r) return r;
	if (i >= MAX_MIG || (long)i >= number_of(d->gpu, "mig", -1)) return NOT_FOUND;
	*part = &parts[d->gpu][i];
	return OK;
}

ret_t nvmlDeviceGetGpuInstanceId(device *d, unsigned int *id) {
	*id = d->mig + 7;
	return on("nvmlDeviceGetGpuInstanceId", d);
}

ret_t nvmlDeviceGetComputeInstanceId(device *d, unsigned int *id) {
	*id = 0;
	return on("nvmlDeviceGetComputeInstanceId", d);
}

ret_t nvmlDeviceGetAttributes_v2(device *d, attributes *a) {
	*a = (attributes){.sm = 16, .gi_slices = 1, .ci_slices = 1, .mem_mb = 9856};
	return on("nvmlDeviceGetAttributes_v2", d);
}

struct events { long last; };

/* event reads the line "xid=NUMBER GPU XID [GI CI]". */
static int event(long *number, int *gpu, event_data *e) {
	char v[64];
	e->type = 8;
	e->gi = e->ci = 0xFFFFFFFF;
	return get("xid", v, sizeof v) && sscanf(v, "%ld %d %llu %u %u", number, gpu, &e->data, &e->gi, &e->ci) >= 3;
}

ret_t nvmlEventSetCreate(struct events **set) {
	int gpu;
	event_data e;
	ret_t r = enter("nvmlEventSetCreate");
	if (r) return r;
	*set = calloc(1, sizeof **set);
	event(&(*set)->last, &gpu, &e);
	return OK;
}

ret_t nvmlEventSetFree(struct events *set) { free(set); return OK; }

ret_t nvmlDeviceGetSupportedEventTypes(device *d, unsigned long long *types) {
	*types = 0x1f;
	return on("nvmlDeviceGetSupportedEventTypes", d);
}

ret_t nvmlDeviceRegisterEvents(device *d, unsigned long long types, struct events *set) {
	ret_t r = on("nvmlDeviceRegisterEvents", d);
	return r ? r : number_of(d->gpu, "register", OK);
}

ret_t nvmlEventSetWait_v2(struct events *set, event_data *e, unsigned int ms) {
	for (unsigned int waited = 0; waited < ms; waited += 10) {
		ret_t r = number("wait", OK);
		if (r) return r;
		long n;
		int gpu;
		if (event(&n, &gpu, e) && n > set->last && gpu >= 0 && gpu < MAX_GPUS) {
			set->last = n;
			e->dev = &gpus[gpu];
			return OK;
		}
		usleep(10000);
	}
	return TIMEOUT;
}
