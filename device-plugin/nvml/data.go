package nvml

// Node is what NVML says of a node without touching any GPU. The data of this file is plain and travels
// from a worker as JSON.
type Node struct {
	// DriverVersion and CUDAVersion are as "570.86.15" and "12.8".
	DriverVersion string `json:"driver_version"`
	CUDAVersion   string `json:"cuda_version,omitempty"`
	// Count is how many GPUs the driver has.
	Count int `json:"count"`
	// Missing are the optional functions that the library does not have.
	Missing []string `json:"missing,omitempty"`
}

// Name identifies one GPU of the driver's list.
type Name struct {
	UUID     string `json:"uuid"`
	PCIBusID string `json:"pci_bus_id"`
	// Events says that the driver reports this GPU's XIDs from now on; else EventsErr says why not,
	// and Refused that it may work another time.
	Events    bool   `json:"events,omitempty"`
	EventsErr string `json:"events_err,omitempty"`
	Refused   bool   `json:"refused,omitempty"`
}

// Reading is everything that is read of one GPU in one round.
type Reading struct {
	Device Device `json:"device"`
	// Load is by the UUID of the GPU and of its MIG instances.
	Load map[string]Load `json:"load"`
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
	// BAR1Bytes is the size of the memory that is mapped through PCIe; 0 where unknown.
	BAR1Bytes uint64 `json:"bar1_bytes,omitempty"`
	// PCIeGeneration and PCIeWidth are the fastest link that GPU and slot can have; 0 where unknown.
	PCIeGeneration int `json:"pcie_generation,omitempty"`
	PCIeWidth      int `json:"pcie_width,omitempty"`
	// Display and Persistence say whether a display is connected and whether the driver stays
	// loaded without programs; nil where unknown.
	Display     *bool `json:"display,omitempty"`
	Persistence *bool `json:"persistence,omitempty"`
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
	// Events says that the driver reports this GPU's XIDs. The source fills it in.
	Events bool `json:"events,omitempty"`
	// Seconds is how long the reading took. The source fills it in.
	Seconds float64 `json:"seconds,omitempty"`

	// Lost, Err and the rest is the GPU's health; see health.Reading.
	Lost        bool    `json:"lost,omitempty"`
	Err         string  `json:"err,omitempty"`
	Uncorrected *uint64 `json:"uncorrected,omitempty"`
	// RemapPending says that a bad row is replaced at the next reset.
	RemapPending bool `json:"remap_pending,omitempty"`
	RemapFailed  bool `json:"remap_failed,omitempty"`
	// RemappedCorrectable and RemappedUncorrectable count the memory rows that were replaced;
	// nil where unknown.
	RemappedCorrectable   *uint64 `json:"remapped_correctable,omitempty"`
	RemappedUncorrectable *uint64 `json:"remapped_uncorrectable,omitempty"`
	Recovery              *string `json:"recovery,omitempty"`
	// SRAMExceeded says that the GPU's SRAM has had more uncorrectable errors over its life than NVIDIA's
	// field diagnostic passes; nil where unknown, as for users other than root. Each such error has had
	// its XID, so it is a reason to have the GPU serviced and not one against its use.
	SRAMExceeded *bool `json:"sram_exceeded,omitempty"`
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
	// Number is the instance's place in the GPU's list.
	Number int `json:"number"`
	// GI and CI number the GPU instance and the compute instance in it.
	GI int `json:"gi"`
	CI int `json:"ci"`
}

// Load is the load of a GPU or MIG instance; nil is unknown.
type Load struct {
	MemoryUsedBytes *uint64 `json:"memory_used_bytes,omitempty"`
	MemoryFreeBytes *uint64 `json:"memory_free_bytes,omitempty"`
	BAR1UsedBytes   *uint64 `json:"bar1_used_bytes,omitempty"`
	// The utilisations are in percent of the last sample period.
	UtilizationPercent       *uint64 `json:"utilization,omitempty"`
	MemoryUtilizationPercent *uint64 `json:"memory_utilization,omitempty"`
	EncoderPercent           *uint64 `json:"encoder,omitempty"`
	DecoderPercent           *uint64 `json:"decoder,omitempty"`
	PowerMilliwatts          *uint64 `json:"power_mw,omitempty"`
	TemperatureCelsius       *uint64 `json:"temperature,omitempty"`
	MemoryCelsius            *uint64 `json:"memory_temperature,omitempty"`
	CoreClockMHz             *uint64 `json:"core_clock_mhz,omitempty"`
	MemoryClockMHz           *uint64 `json:"memory_clock_mhz,omitempty"`
	// Throttle is the bit mask of what keeps the clocks down, NVML's nvmlClocksEventReason….
	Throttle *uint64 `json:"throttle,omitempty"`
	// EnergyMillijoules is counted since the driver was loaded.
	EnergyMillijoules *uint64 `json:"energy_mj,omitempty"`
	PCIeReplays       *uint64 `json:"pcie_replays,omitempty"`
	PCIeSentBytes     *uint64 `json:"pcie_sent_bytes,omitempty"`
	PCIeReceivedBytes *uint64 `json:"pcie_received_bytes,omitempty"`
	// NVLinkSentKiB and NVLinkReceivedKiB are the data on all links together.
	NVLinkSentKiB     *uint64 `json:"nvlink_sent_kib,omitempty"`
	NVLinkReceivedKiB *uint64 `json:"nvlink_received_kib,omitempty"`
	// The corrected memory errors since the last reset, by where they were.
	CorrectedL1     *uint64 `json:"corrected_l1,omitempty"`
	CorrectedL2     *uint64 `json:"corrected_l2,omitempty"`
	CorrectedMemory *uint64 `json:"corrected_memory,omitempty"`
}

// Event is an XID that the driver reported by itself, or a failed wait for events.
type Event struct {
	// GPU is the UUID, empty where the driver did not say which GPU.
	GPU string `json:"gpu,omitempty"`
	// XID is the number, 0 where waiting for events begins to fail or works again.
	XID uint64 `json:"xid,omitempty"`
	// GI and CI are set where the XID is one MIG instance's, else -1.
	GI int `json:"gi"`
	CI int `json:"ci"`
	// Err is why events cannot be waited for at the moment.
	Err string `json:"err,omitempty"`
}

// The operations that a worker knows. A worker that was started without a GPU answers OpNode and
// OpName, one that was started for a GPU answers OpRead.
const (
	OpNode = "node"
	OpName = "name" // and registers the GPU's events
	OpRead = "read"
)

// Request is one line to a worker's standard input.
type Request struct {
	ID uint64 `json:"id"`
	Op string `json:"op"`
	// Index is the GPU's number in the driver's list, for OpName.
	Index int `json:"index,omitempty"`
}

// Message is one line from a worker, on file descriptor WorkerFD.
type Message struct {
	// ID is the request's, and 0 for events and for the first message: NVML is initialised, or Err.
	ID uint64 `json:"id,omitempty"`
	// Err is why a request, or the start, failed. After a failed start and
	// after Fatal the worker ends: NVML has to be initialised anew.
	Err   string `json:"err,omitempty"`
	Fatal bool   `json:"fatal,omitempty"`
	// NoDriver says of an error that the driver is not loaded.
	NoDriver bool     `json:"no_driver,omitempty"`
	Node     *Node    `json:"node,omitempty"`
	Name     *Name    `json:"name,omitempty"`
	Reading  *Reading `json:"reading,omitempty"`
	Event    *Event   `json:"event,omitempty"`
}

// WorkerFD is the file descriptor on which a worker answers, and RecordFD the one of the Record of
// its calls. Its standard output and error stay free for what libraries and the linker print.
const (
	WorkerFD = 3
	RecordFD = 4
)
