package worker

import (
	"errors"
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	nv "github.com/NVIDIA/go-nvml/pkg/nvml"

	"remuda/device-plugin/nvml"
)

// DefaultLibrary is what the dynamic linker is asked for.
const DefaultLibrary = "libnvidia-ml.so.1"

// required are the functions without which nothing can be said of a GPU. Each
// entry lists the versions of one function, any of which will do.
var required = [][]string{
	{"nvmlInit_v2", "nvmlInit"},
	{"nvmlErrorString"},
	{"nvmlSystemGetDriverVersion"},
	{"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"},
	{"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"},
	{"nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetHandleByPciBusId"},
	{"nvmlDeviceGetUUID"},
	{"nvmlDeviceGetName"},
	{"nvmlDeviceGetMemoryInfo"},
	{"nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo"},
}

// optional are the functions that a Reader and the events can do without.
var optional = []string{
	"nvmlSystemGetCudaDriverVersion", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetCudaComputeCapability",
	"nvmlDeviceGetArchitecture", "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetMaxClockInfo",
	"nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetNvLinkState",
	"nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetTotalEccErrors",
	"nvmlDeviceGetBAR1MemoryInfo", "nvmlDeviceGetMaxPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkWidth",
	"nvmlDeviceGetDisplayMode", "nvmlDeviceGetPersistenceMode", "nvmlDeviceGetEncoderUtilization",
	"nvmlDeviceGetDecoderUtilization", "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPcieReplayCounter",
	"nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetDetailedEccErrors",
	"nvmlDeviceGetRemappedRows", "nvmlDeviceGetSramEccErrorStatus", "nvmlDeviceGetFieldValues", "nvmlDeviceGetMigMode",
	"nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstanceId",
	"nvmlDeviceGetComputeInstanceId", "nvmlDeviceGetAttributes_v2", "nvmlDeviceGetMemoryInfo_v2",
	"nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetTemperature", "nvmlDeviceGetClockInfo",
	"nvmlEventSetCreate", "nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2",
}

// open loads a library and initialises NVML. It looks the functions up before
// it calls any: go-nvml binds them by the linker, so that a call of one that
// the library lacks, or any call after a failed load, ends the process.
// It records the call.
func open(path string, record *nvml.Record) (nv.Interface, func(symbol string) bool, error) {
	if path == "" {
		path = DefaultLibrary
	}
	// go-nvml swallows the linker's own words; this handle is for them and for
	// the look-ups, and stays open.
	handle := dl.New(path, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if err := handle.Open(); err != nil {
		return nil, nil, fmt.Errorf("load NVML: %w", err)
	}
	have := func(symbol string) bool { return handle.Lookup(symbol) == nil }
	var missing []string
	for _, versions := range required {
		found := false
		for _, symbol := range versions {
			found = found || have(symbol)
		}
		if !found {
			missing = append(missing, versions[0])
		}
	}
	if len(missing) > 0 {
		return nil, nil, fmt.Errorf("load NVML: %s lacks %s: it is no NVML, or a far too old one", path, strings.Join(missing, ", "))
	}
	lib := nv.New(nv.WithLibraryPath(path))
	record.Enter(0, "nvmlInit")
	ret := lib.Init()
	record.Leave(0)
	if ret == nv.ERROR_LIBRARY_NOT_FOUND {
		return nil, nil, errors.New("load NVML: the library was found once and not again")
	}
	if err := fault("nvmlInit", ret); err != nil {
		return nil, nil, err
	}
	return lib, have, nil
}
