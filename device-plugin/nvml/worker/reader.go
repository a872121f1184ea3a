package worker

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	nv "github.com/NVIDIA/go-nvml/pkg/nvml"

	"remuda/device-plugin/nvml"
)

// errReinit is wrapped by errors after which NVML has to be initialised anew,
// which takes a new process.
var errReinit = errors.New("NVML has to be initialised anew")

// errNoDriver is wrapped as well where the driver is gone.
var errNoDriver = errors.New("the NVIDIA driver is not loaded")

// errLost is wrapped where the driver calls a GPU lost.
var errLost = errors.New("the GPU is lost")

// Reader reads through an initialised NVML. It calls a function only if the library has it: a call of
// one that is missing ends the process. It records every call. Calls with the same slot must not be
// made at the same time.
type Reader struct {
	lib    nv.Interface
	has    map[string]bool
	record *nvml.Record
	slot   int
	// dev is the GPU that Read reads, nil until it was opened, and static what does not change of it
	// while NVML is initialised.
	dev    nv.Device
	static nvml.Device
}

// NewReader makes a Reader. have says whether the library has a function. record may be nil.
func NewReader(lib nv.Interface, have func(symbol string) bool, record *nvml.Record) *Reader {
	r := &Reader{lib: lib, has: map[string]bool{}, record: record}
	for _, symbol := range append(slices.Concat(required...), optional...) {
		r.has[symbol] = have(symbol)
	}
	return r
}

// at is a reader whose calls are recorded in another slot.
func (r *Reader) at(slot int) *Reader {
	return &Reader{lib: r.lib, has: r.has, record: r.record, slot: min(max(slot, 0), nvml.MaxGPUs)}
}

func (r *Reader) have(symbol string) bool { return r.has[symbol] }

// call runs fn, which calls the named function of NVML, if the library has it.
func (r *Reader) call(symbol string, fn func() nv.Return) nv.Return {
	if !r.have(symbol) {
		return nv.ERROR_FUNCTION_NOT_FOUND
	}
	return r.enter(symbol, fn)
}

// try is call for what may fail: fn keeps what it got.
func (r *Reader) try(symbol string, fn func() nv.Return) { _ = r.call(symbol, fn) }

func (r *Reader) enter(symbol string, fn func() nv.Return) nv.Return {
	r.record.Enter(r.slot, symbol)
	defer r.record.Leave(r.slot)
	return fn()
}

// fault turns a return code into an error.
func fault(symbol string, ret nv.Return) error {
	if ret == nv.SUCCESS {
		return nil
	}
	err := fmt.Errorf("%s: %s", symbol, text(ret))
	switch ret {
	case nv.ERROR_DRIVER_NOT_LOADED, nv.ERROR_UNINITIALIZED, nv.ERROR_LIB_RM_VERSION_MISMATCH:
		return reinit{err, ret == nv.ERROR_DRIVER_NOT_LOADED}
	case nv.ERROR_GPU_IS_LOST:
		return fmt.Errorf("%s: %w", symbol, errLost)
	}
	return err
}

// reinit is an error that is errReinit, and errNoDriver if noDriver is set.
type reinit struct {
	error
	noDriver bool
}

// Is implements what errors.Is looks for.
func (e reinit) Is(target error) bool {
	return target == errReinit || e.noDriver && target == errNoDriver
}

// absent says that the GPU, or the library, has no such thing: an answer, and
// no failure.
func absent(ret nv.Return) bool {
	return ret == nv.ERROR_NOT_SUPPORTED || ret == nv.ERROR_FUNCTION_NOT_FOUND
}

// unread notes that a GPU cannot be read. Its error is that nothing can.
func unread(d *nvml.Device, symbol string, ret nv.Return) error {
	err := fault(symbol, ret)
	if errors.Is(err, errReinit) {
		return err
	}
	d.Lost, d.Err = errors.Is(err, errLost), err.Error()
	return nil
}

// text is what a return code means. It does not ask the library, which may be
// in no state to be asked.
func text(ret nv.Return) string {
	switch ret {
	case nv.ERROR_DRIVER_NOT_LOADED:
		return "the NVIDIA driver is not loaded"
	case nv.ERROR_GPU_IS_LOST:
		return "the GPU is lost"
	case nv.ERROR_LIB_RM_VERSION_MISMATCH:
		return "the library and the loaded driver are of different versions"
	case nv.ERROR_NO_PERMISSION:
		return "no permission"
	case nv.ERROR_RESET_REQUIRED:
		return "the GPU requires a reset"
	case nv.ERROR_UNKNOWN:
		return "unknown error"
	case nv.ERROR_UNINITIALIZED:
		return "NVML is not initialised"
	case nv.ERROR_TIMEOUT:
		return "timeout"
	case nv.ERROR_IRQ_ISSUE:
		return "the kernel found a problem with the GPU's interrupts"
	case nv.ERROR_CORRUPTED_INFOROM:
		return "the GPU's infoROM is corrupted"
	case nv.ERROR_NOT_SUPPORTED:
		return "not supported"
	}
	return fmt.Sprintf("NVML error %d", int32(ret))
}

// Node reads what concerns the node. It touches no GPU.
func (r *Reader) Node() (*nvml.Node, error) {
	var n nvml.Node
	for _, symbol := range optional {
		if !r.has[symbol] {
			n.Missing = append(n.Missing, symbol)
		}
	}
	ret := r.enter("nvmlSystemGetDriverVersion", func() (ret nv.Return) {
		n.DriverVersion, ret = r.lib.SystemGetDriverVersion()
		return ret
	})
	if err := fault("nvmlSystemGetDriverVersion", ret); err != nil {
		return nil, err
	}
	ret = r.call("nvmlSystemGetCudaDriverVersion", func() nv.Return {
		v, ret := r.lib.SystemGetCudaDriverVersion()
		if ret == nv.SUCCESS && v > 0 {
			n.CUDAVersion = fmt.Sprintf("%d.%d", v/1000, v%1000/10)
		}
		return ret
	})
	if err := fault("nvmlSystemGetCudaDriverVersion", ret); errors.Is(err, errReinit) {
		return nil, err
	}
	ret = r.enter("nvmlDeviceGetCount", func() (ret nv.Return) {
		n.Count, ret = r.lib.DeviceGetCount()
		return ret
	})
	if err := fault("nvmlDeviceGetCount", ret); err != nil {
		return nil, err
	}
	return &n, nil
}

// Name opens GPU number i and names it.
func (r *Reader) Name(i int) (nv.Device, *nvml.Name, error) {
	var dev nv.Device
	n := &nvml.Name{}
	err := r.steps(
		step{"nvmlDeviceGetHandleByIndex", func() (ret nv.Return) { dev, ret = r.lib.DeviceGetHandleByIndex(i); return ret }},
		step{"nvmlDeviceGetUUID", func() (ret nv.Return) { n.UUID, ret = dev.GetUUID(); return ret }},
		step{"nvmlDeviceGetPciInfo", func() nv.Return {
			pci, ret := dev.GetPciInfo()
			n.PCIBusID = busID(pci)
			return ret
		}},
	)
	if err == nil && n.UUID == "" {
		err = errors.New("nvmlDeviceGetUUID: empty")
	}
	return dev, n, err
}

// step is a call that must succeed.
type step struct {
	symbol string
	call   func() nv.Return
}

func (r *Reader) steps(steps ...step) error {
	for _, s := range steps {
		if err := fault(s.symbol, r.enter(s.symbol, s.call)); err != nil {
			return err
		}
	}
	return nil
}

// Read reads the GPU with a PCI bus ID, its health and its load. The error wraps errReinit; any other
// fault is in the reading, which is without a UUID if the GPU could not even be opened.
func (r *Reader) Read(bus string) (*nvml.Reading, error) {
	reading := &nvml.Reading{}
	if r.dev == nil {
		if err := r.open(bus); errors.Is(err, errReinit) {
			return nil, err
		} else if err != nil {
			reading.Device = nvml.Device{Lost: errors.Is(err, errLost), Err: err.Error()}
			return reading, nil
		}
	}
	reading.Device = r.static
	if err := r.present(r.dev, &reading.Device); err != nil {
		return nil, err
	}
	if reading.Device.Err == "" {
		reading.Load = r.loads(r.dev, reading.Device)
	}
	return reading, nil
}

// open opens a GPU and reads what is static of it.
func (r *Reader) open(bus string) error {
	var dev nv.Device
	d := nvml.Device{PCIBusID: bus}
	ret := r.enter("nvmlDeviceGetHandleByPciBusId", func() (ret nv.Return) { dev, ret = r.lib.DeviceGetHandleByPciBusId(bus); return ret })
	if ret == nv.ERROR_NOT_FOUND {
		return fmt.Errorf("nvmlDeviceGetHandleByPciBusId: %w", errLost)
	}
	if err := fault("nvmlDeviceGetHandleByPciBusId", ret); err != nil {
		return err
	}
	if err := r.steps(
		step{"nvmlDeviceGetUUID", func() (ret nv.Return) { d.UUID, ret = dev.GetUUID(); return ret }},
		step{"nvmlDeviceGetName", func() (ret nv.Return) { d.Name, ret = dev.GetName(); return ret }},
		step{"nvmlDeviceGetMemoryInfo", func() nv.Return {
			mem, ret := dev.GetMemoryInfo()
			if ret == nv.ERROR_NOT_SUPPORTED { // a GPU without memory of its own, as GB10
				return nv.SUCCESS
			}
			d.MemoryBytes = mem.Total
			return ret
		}},
	); err != nil {
		return err
	}
	r.details(dev, &d)
	r.dev, r.static = dev, d
	return nil
}

// details reads what is static and may be unknown.
func (r *Reader) details(dev nv.Device, d *nvml.Device) {
	d.Minor = -1
	for symbol, read := range map[string]func() nv.Return{
		"nvmlDeviceGetMinorNumber": func() nv.Return {
			n, ret := dev.GetMinorNumber()
			if ret == nv.SUCCESS {
				d.Minor = n
			}
			return ret
		},
		"nvmlDeviceGetCudaComputeCapability": func() nv.Return {
			major, minor, ret := dev.GetCudaComputeCapability()
			if ret == nv.SUCCESS {
				d.CCMajor, d.CCMinor = major, minor
			}
			return ret
		},
		"nvmlDeviceGetArchitecture": func() nv.Return {
			a, ret := dev.GetArchitecture()
			if ret == nv.SUCCESS {
				d.Architecture = architectures[a]
			}
			return ret
		},
		"nvmlDeviceGetBAR1MemoryInfo": func() nv.Return {
			m, ret := dev.GetBAR1MemoryInfo()
			if ret == nv.SUCCESS {
				d.BAR1Bytes = m.Bar1Total
			}
			return ret
		},
		"nvmlDeviceGetMaxPcieLinkGeneration": func() nv.Return {
			n, ret := dev.GetMaxPcieLinkGeneration()
			if ret == nv.SUCCESS {
				d.PCIeGeneration = n
			}
			return ret
		},
		"nvmlDeviceGetMaxPcieLinkWidth": func() nv.Return {
			n, ret := dev.GetMaxPcieLinkWidth()
			if ret == nv.SUCCESS {
				d.PCIeWidth = n
			}
			return ret
		},
		"nvmlDeviceGetMaxClockInfo": func() nv.Return {
			core, ret := dev.GetMaxClockInfo(nv.CLOCK_SM)
			if ret == nv.SUCCESS {
				d.CoreClockMHz = core
			}
			memory, ret := dev.GetMaxClockInfo(nv.CLOCK_MEM)
			if ret == nv.SUCCESS {
				d.MemoryClockMHz = memory
			}
			return ret
		},
		"nvmlDeviceGetGpuFabricInfo": func() nv.Return {
			//nolint:staticcheck // its successor GetGpuFabricInfoV cannot be mocked, and its version 1 says all that is needed
			f, ret := dev.GetGpuFabricInfo()
			if ret == nv.SUCCESS && f.State == nv.GPU_FABRIC_STATE_COMPLETED && f.ClusterUuid != [16]uint8{} {
				d.Fabric = fmt.Sprintf("%s.%d", hex.EncodeToString(f.ClusterUuid[:]), f.CliqueId)
			}
			return ret
		},
	} {
		r.try(symbol, read)
	}
	d.Links = r.links(dev)
}

// links reads the active NVLinks.
func (r *Reader) links(dev nv.Device) []nvml.Link {
	var links []nvml.Link
	for i := range nv.NVLINK_MAX_LINKS {
		state := nv.FEATURE_DISABLED
		ret := r.call("nvmlDeviceGetNvLinkState", func() (ret nv.Return) {
			state, ret = dev.GetNvLinkState(i)
			return ret
		})
		if ret == nv.ERROR_NOT_SUPPORTED || ret == nv.ERROR_INVALID_ARGUMENT || ret == nv.ERROR_FUNCTION_NOT_FOUND {
			break // this GPU has no more links, or none
		}
		if ret != nv.SUCCESS || state != nv.FEATURE_ENABLED {
			continue
		}
		var link nvml.Link
		r.try("nvmlDeviceGetNvLinkRemoteDeviceType", func() nv.Return {
			kind, ret := dev.GetNvLinkRemoteDeviceType(i)
			link.Switch = ret == nv.SUCCESS && kind == nv.NVLINK_DEVICE_TYPE_SWITCH
			return ret
		})
		if !link.Switch {
			r.try("nvmlDeviceGetNvLinkRemotePciInfo_v2", func() nv.Return {
				pci, ret := dev.GetNvLinkRemotePciInfo(i)
				if ret == nv.SUCCESS {
					link.Remote = busID(pci)
				}
				return ret
			})
		}
		if !slices.Contains(links, link) {
			links = append(links, link)
		}
	}
	return links
}

// present reads what may change: whether the GPU answers, its errors, and its
// MIG instances. Its error wraps errReinit.
func (r *Reader) present(dev nv.Device, d *nvml.Device) error {
	ret := r.enter("nvmlDeviceGetMemoryInfo", func() (ret nv.Return) {
		_, ret = dev.GetMemoryInfo()
		return ret
	})
	if ret != nv.SUCCESS && !absent(ret) {
		return unread(d, "nvmlDeviceGetMemoryInfo", ret)
	}
	// These follow the operator while the driver runs.
	r.try("nvmlDeviceGetEnforcedPowerLimit", func() nv.Return {
		mw, ret := dev.GetEnforcedPowerLimit()
		if ret == nv.SUCCESS {
			d.PowerLimitMilliwatts = mw
		}
		return ret
	})
	state := func(symbol string, into **bool, read func() (nv.EnableState, nv.Return)) {
		r.try(symbol, func() nv.Return {
			v, ret := read()
			if ret == nv.SUCCESS {
				on := v == nv.FEATURE_ENABLED
				*into = &on
			}
			return ret
		})
	}
	state("nvmlDeviceGetDisplayMode", &d.Display, dev.GetDisplayMode)
	state("nvmlDeviceGetPersistenceMode", &d.Persistence, dev.GetPersistenceMode)
	r.try("nvmlDeviceGetTotalEccErrors", func() nv.Return {
		n, ret := dev.GetTotalEccErrors(nv.MEMORY_ERROR_TYPE_UNCORRECTED, nv.VOLATILE_ECC)
		if ret == nv.SUCCESS {
			d.Uncorrected = &n
		}
		return ret
	})
	r.try("nvmlDeviceGetRemappedRows", func() nv.Return {
		correctable, uncorrectable, pending, failed, ret := dev.GetRemappedRows()
		if ret == nv.SUCCESS {
			c, u := uint64(max(correctable, 0)), uint64(max(uncorrectable, 0))
			d.RemapPending, d.RemapFailed, d.RemappedCorrectable, d.RemappedUncorrectable = pending, failed, &c, &u
		}
		return ret
	})
	r.try("nvmlDeviceGetSramEccErrorStatus", func() nv.Return {
		status, ret := dev.GetSramEccErrorStatus()
		if ret == nv.SUCCESS {
			exceeded := status.BThresholdExceeded != 0
			d.SRAMExceeded = &exceeded
		}
		return ret
	})
	r.try("nvmlDeviceGetFieldValues", func() nv.Return {
		values := []nv.FieldValue{{FieldId: nv.FI_DEV_GET_GPU_RECOVERY_ACTION}}
		ret := dev.GetFieldValues(values)
		if ret == nv.SUCCESS && nv.Return(values[0].NvmlReturn) == nv.SUCCESS {
			action := recovery(nv.DeviceGpuRecoveryAction(binary.NativeEndian.Uint32(values[0].Value[:4])))
			d.Recovery = &action
		}
		return ret
	})
	// A GPU of which it is not known how it is split cannot be published as
	// whole, nor without its instances: tasks hold seats of them.
	ret = r.call("nvmlDeviceGetMigMode", func() nv.Return {
		current, _, ret := dev.GetMigMode()
		d.MIG = ret == nv.SUCCESS && current == nv.DEVICE_MIG_ENABLE
		return ret
	})
	if ret != nv.SUCCESS && !absent(ret) {
		return unread(d, "nvmlDeviceGetMigMode", ret)
	}
	if d.MIG {
		if symbol, ret := r.instances(dev, d); ret != nv.SUCCESS {
			return unread(d, symbol, ret)
		}
	}
	return nil
}

// busID is the bus ID without its padding.
func busID(pci nv.PciInfo) string {
	var b strings.Builder
	for _, c := range pci.BusId {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}

// recovery says in words what the driver wants done.
func recovery(action nv.DeviceGpuRecoveryAction) string {
	switch action {
	case nv.GPU_RECOVERY_ACTION_NONE:
		return ""
	case nv.GPU_RECOVERY_ACTION_GPU_RESET:
		return "reset the GPU"
	case nv.GPU_RECOVERY_ACTION_NODE_REBOOT:
		return "reboot the node"
	case nv.GPU_RECOVERY_ACTION_DRAIN_P2P:
		return "end all peer-to-peer traffic of the GPU"
	case nv.GPU_RECOVERY_ACTION_DRAIN_AND_RESET:
		return "drain the GPU and reset it"
	case nv.GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN:
		return "recover the IMEX domain"
	}
	return fmt.Sprintf("take recovery action %d", action)
}

// architectures are the names that CUDA's documents use.
var architectures = map[nv.DeviceArchitecture]string{
	nv.DEVICE_ARCH_KEPLER: "kepler", nv.DEVICE_ARCH_MAXWELL: "maxwell", nv.DEVICE_ARCH_PASCAL: "pascal",
	nv.DEVICE_ARCH_VOLTA: "volta", nv.DEVICE_ARCH_TURING: "turing", nv.DEVICE_ARCH_AMPERE: "ampere",
	nv.DEVICE_ARCH_ADA: "ada", nv.DEVICE_ARCH_HOPPER: "hopper", nv.DEVICE_ARCH_BLACKWELL: "blackwell",
	nv.DEVICE_ARCH_RUBIN: "rubin",
}
