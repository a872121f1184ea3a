package nvml

// Look is what NVML said of a node at one moment. It is plain data and travels
// from the worker as JSON.
type Look struct {
	// DriverVersion and CUDAVersion are as "570.86.15" and "12.8".
	DriverVersion string `json:"driver_version"`
	CUDAVersion   string `json:"cuda_version,omitempty"`
	// Missing are the optional functions that the library does not have.
	Missing []string `json:"missing,omitempty"`
	// Devices are the GPUs that could be named, in NVML's order.
	Devices []Device `json:"devices"`
	// Unnamed says of the GPUs that could not even be named why, and
	// UnnamedLost that the driver calls one of them lost.
	Unnamed     []string `json:"unnamed,omitempty"`
	UnnamedLost bool     `json:"unnamed_lost,omitempty"`
}

// Device is one GPU.
type Device struct {
	UUID string `json:"uuid"`
	Name string `json:"name"`
	// PCIBusID is as NVML writes it: "00000000:3B:00.0".
	PCIBusID string `json:"pci_bus_id"`
	// Minor is the number in the name of the device file, -1 where unknown.
	Minor int `json:"minor"`
	// MemoryBytes is the size of the memory; 0 where unknown.
	MemoryBytes uint64 `json:"memory_bytes"`
	// CCMajor and CCMinor are CUDA's compute capability, 0 where unknown.
	CCMajor int `json:"cc_major,omitempty"`
	CCMinor int `json:"cc_minor,omitempty"`
	// Architecture is the lower-case name of the chip's generation.
	Architecture string `json:"architecture,omitempty"`
	// PowerLimitMilliwatts is the limit in force; 0 where unknown.
	PowerLimitMilliwatts uint32 `json:"power_limit_mw,omitempty"`
	// CoreClockMHz and MemoryClockMHz are the highest clocks; 0 where unknown.
	CoreClockMHz   uint32 `json:"core_clock_mhz,omitempty"`
	MemoryClockMHz uint32 `json:"memory_clock_mhz,omitempty"`
	// Fabric names the NVLink domain that spans nodes, empty where there is none.
	Fabric string `json:"fabric,omitempty"`
	// Links are the active NVLinks.
	Links []Link `json:"links,omitempty"`
	// MIG says that the GPU is split, and Instances are its parts.
	MIG       bool       `json:"mig,omitempty"`
	Instances []Instance `json:"instances,omitempty"`
	// Events says that the driver reports this GPU's XIDs.
	Events bool `json:"events,omitempty"`

	// Lost, Err and the rest is the GPU's health; see health.Reading.
	Lost        bool    `json:"lost,omitempty"`
	Err         string  `json:"err,omitempty"`
	Uncorrected *uint64 `json:"uncorrected,omitempty"`
	// RemapPending says that a bad row is replaced at the next reset.
	RemapPending bool    `json:"remap_pending,omitempty"`
	RemapFailed  bool    `json:"remap_failed,omitempty"`
	Recovery     *string `json:"recovery,omitempty"`
}

// Link is one NVLink.
type Link struct {
	// Remote is the PCI bus ID of what is at the other end.
	Remote string `json:"remote,omitempty"`
	// Switch says that it is an NVSwitch, to which every GPU of the node goes.
	Switch bool `json:"switch,omitempty"`
}

// Instance is one MIG instance.
type Instance struct {
	UUID string `json:"uuid"`
	// Profile is as "1g.10gb".
	Profile     string `json:"profile"`
	MemoryBytes uint64 `json:"memory_bytes"`
	// GI and CI number the GPU instance and the compute instance in it.
	GI int `json:"gi"`
	CI int `json:"ci"`
}

// Load is the load of a GPU or MIG instance; nil is unknown.
type Load struct {
	MemoryUsedBytes          *uint64 `json:"memory_used_bytes,omitempty"`
	UtilizationPercent       *uint32 `json:"utilization,omitempty"`
	MemoryUtilizationPercent *uint32 `json:"memory_utilization,omitempty"`
	PowerMilliwatts          *uint32 `json:"power_mw,omitempty"`
	TemperatureCelsius       *uint32 `json:"temperature,omitempty"`
	CoreClockMHz             *uint32 `json:"core_clock_mhz,omitempty"`
	MemoryClockMHz           *uint32 `json:"memory_clock_mhz,omitempty"`
}

// Event is something that the driver reported by itself.
type Event struct {
	// GPU is the UUID, empty where the driver did not say which GPU.
	GPU string `json:"gpu,omitempty"`
	// XID is the number, 0 for "something happened, look again".
	XID uint64 `json:"xid,omitempty"`
	// GI and CI are set where the XID is one MIG instance's, else -1.
	GI int `json:"gi"`
	CI int `json:"ci"`
}

// The operations that a worker knows.
const (
	OpLook = "look"
	OpLoad = "load"
)

// Request is one line to a worker's standard input.
type Request struct {
	ID uint64 `json:"id"`
	Op string `json:"op"`
}

// Message is one line from a worker, on file descriptor 3.
type Message struct {
	// ID is the request's, 0 for what nobody asked for.
	ID uint64 `json:"id,omitempty"`
	// Ready says that NVML was initialised; it is the first message.
	Ready bool `json:"ready,omitempty"`
	// Err is why a request, or the start, failed. After a failed start and
	// after Fatal the worker ends: NVML has to be initialised anew.
	Err   string `json:"err,omitempty"`
	Fatal bool   `json:"fatal,omitempty"`
	// NoDriver says of an error that the driver is not loaded.
	NoDriver bool            `json:"no_driver,omitempty"`
	Look     *Look           `json:"look,omitempty"`
	Load     map[string]Load `json:"load,omitempty"`
	Event    *Event          `json:"event,omitempty"`
	// Stuck names the NVML function that has not returned for a while.
	Stuck string `json:"stuck,omitempty"`
}

// WorkerFD is the file descriptor on which a worker answers. Its standard
// output and error stay free for what libraries and the linker have to say.
const WorkerFD = 3
