package worker_test

import (
	"maps"
	"reflect"
	"testing"

	nv "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxb200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/stretchr/testify/require"

	"remuda/device-plugin/nvml"
	"remuda/device-plugin/nvml/worker"
)

// complete gives a mock an answer, "not supported", for every function that it
// has none for. Called as they are, those panic.
func complete(m any) {
	v := reflect.ValueOf(m).Elem()
	for i := range v.NumField() {
		field := v.Field(i)
		if field.Kind() != reflect.Func || !field.IsNil() || !field.CanSet() {
			continue
		}
		field.Set(reflect.MakeFunc(field.Type(), func([]reflect.Value) []reflect.Value {
			out := make([]reflect.Value, field.Type().NumOut())
			for j := range out {
				t := field.Type().Out(j)
				out[j] = reflect.New(t).Elem()
				if t == reflect.TypeFor[nv.Return]() {
					out[j].SetInt(int64(nv.ERROR_NOT_SUPPORTED))
				}
			}
			return out
		}))
	}
}

// node completes a mocked node and its GPUs.
func node(s *server.Server) *server.Server {
	buses := map[string]nv.Device{}
	s.DeviceGetHandleByPciBusIdFunc = func(bus string) (nv.Device, nv.Return) {
		if d, ok := buses[bus]; ok {
			return d, nv.SUCCESS
		}
		return nil, nv.ERROR_NOT_FOUND
	}
	complete(&s.Interface)
	for _, d := range s.Devices {
		device := d.(*server.Device)
		bus := "0000" + device.PciBusID
		buses[bus] = device
		device.GetPciInfoFunc = func() (nv.PciInfo, nv.Return) {
			p := nv.PciInfo{PciDeviceId: device.Config.PciDeviceId}
			for i, c := range []byte(bus) {
				p.BusId[i] = int8(c)
			}
			return p, nv.SUCCESS
		}
		complete(&device.Device)
	}
	return s
}

// nodeReader reads a whole mocked node, as the workers do together.
type nodeReader struct {
	have func(string) bool
	node *worker.Reader
	lib  *server.Server
	gpus map[int]*worker.Reader
}

func reader(s *server.Server) *nodeReader {
	return readerWith(s, func(symbol string) bool { return s.LookupSymbol(symbol) == nil })
}

func readerWith(s *server.Server, have func(string) bool) *nodeReader {
	return &nodeReader{lib: s, have: have, node: worker.NewReader(s, have, nil), gpus: map[int]*worker.Reader{}}
}

func (r *nodeReader) read() (*nvml.Look, map[string]nvml.Load, error) {
	n, err := r.node.Node()
	if err != nil {
		return nil, nil, err
	}
	look := &nvml.Look{DriverVersion: n.DriverVersion, CUDAVersion: n.CUDAVersion, Missing: n.Missing}
	loads := map[string]nvml.Load{}
	for i := range n.Count {
		_, name, err := r.node.Name(i)
		if err != nil {
			look.Unnamed = append(look.Unnamed, err.Error())
			continue
		}
		if r.gpus[i] == nil {
			r.gpus[i] = worker.NewReader(r.lib, r.have, nil)
		}
		reading, err := r.gpus[i].Read(name.PCIBusID)
		if err != nil {
			return nil, nil, err
		}
		look.Devices = append(look.Devices, reading.Device)
		maps.Copy(loads, reading.Load)
	}
	return look, loads, nil
}

func (r *nodeReader) Look() (*nvml.Look, error) {
	look, _, err := r.read()
	return look, err
}

func (r *nodeReader) Load() (map[string]nvml.Load, error) {
	_, loads, err := r.read()
	return loads, err
}

func TestFingerprintOfMockedNodes(t *testing.T) {
	for _, tc := range []struct {
		name         string
		node         *server.Server
		model        string
		memoryMiB    int64
		capability   float64
		architecture string
		driver, cuda string
	}{
		{"DGX A100", dgxa100.New(), "Mock NVIDIA A100-SXM4-40GB", 40960, 8, "ampere", "550.54.15", "12.4"},
		{"DGX H100", dgxh100.New(), "NVIDIA H100 80GB HBM3", 81920, 9, "hopper", "550.54.15", "12.4"},
		{"DGX H200", dgxh200.New(), "NVIDIA H200 141GB HBM3e", 144384, 9, "hopper", "550.54.15", "12.4"},
		{"DGX B200", dgxb200.New(), "NVIDIA B200 180GB HBM3e", 184320, 10, "blackwell", "560.28.03", "12.6"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			look, err := reader(node(tc.node)).Look()
			require.NoError(t, err)
			require.Empty(t, look.Unnamed)
			require.Empty(t, look.Missing)
			got := look.GPUs(t.TempDir())
			require.Len(t, got, 8)
			seen := map[string]bool{}
			for i, g := range got {
				require.Equal(t, tc.model, g.Model)
				require.Equal(t, tc.memoryMiB, g.MemoryMiB)
				require.InDelta(t, tc.capability, g.ComputeCapability, 0)
				require.Equal(t, tc.architecture, g.Architecture)
				require.Equal(t, tc.driver+" "+tc.cuda, g.DriverVersion+" "+g.CUDAVersion)
				require.Equal(t, "/dev/nvidia"+string(rune('0'+i)), g.DeviceNodes)
				require.Empty(t, g.Clique)
				require.Empty(t, g.Unhealthy)
				seen[g.UUID] = true
			}
			require.Len(t, seen, 8)
		})
	}
}

// A node of two generations, one GPU of which is broken.
func TestMixedNode(t *testing.T) {
	s, err := server.New(server.WithGPUs(gpus.H100_SXM5_80GB, gpus.A30_PCIE_24GB, gpus.H100_SXM5_80GB),
		server.WithDriverVersion("580.1"), server.WithCUDADriverVersion(13000))
	require.NoError(t, err)
	node(s)
	broken := s.Devices[2].(*server.Device)
	limit := uint64(4)
	broken.GetTotalEccErrorsFunc = func(kind nv.MemoryErrorType, counter nv.EccCounterType) (uint64, nv.Return) {
		require.Equal(t, nv.MEMORY_ERROR_TYPE_UNCORRECTED, kind)
		require.Equal(t, nv.VOLATILE_ECC, counter)
		return limit, nv.SUCCESS
	}
	broken.GetRemappedRowsFunc = func() (int, int, bool, bool, nv.Return) { return 0, 1, true, false, nv.SUCCESS }
	broken.GetFieldValuesFunc = func(v []nv.FieldValue) nv.Return {
		for i := range v {
			v[i].NvmlReturn = uint32(nv.ERROR_NOT_SUPPORTED)
			if v[i].FieldId == nv.FI_DEV_GET_GPU_RECOVERY_ACTION {
				v[i].NvmlReturn, v[i].Value[0] = uint32(nv.SUCCESS), byte(nv.GPU_RECOVERY_ACTION_GPU_RESET)
			}
		}
		return nv.SUCCESS
	}
	r := reader(s)
	look, err := r.Look()
	require.NoError(t, err)
	require.Equal(t, "13.0", look.CUDAVersion)
	require.Equal(t, []string{"hopper", "ampere", "hopper"}, []string{look.Devices[0].Architecture, look.Devices[1].Architecture, look.Devices[2].Architecture})
	require.Nil(t, look.Devices[0].Uncorrected)
	require.Nil(t, look.Devices[0].Recovery)
	d := look.Devices[2]
	require.EqualValues(t, 4, *d.Uncorrected)
	require.True(t, d.RemapPending)
	require.False(t, d.RemapFailed)
	require.Equal(t, "reset the GPU", *d.Recovery)

	broken.GetMemoryInfoFunc = func() (nv.Memory, nv.Return) { return nv.Memory{}, nv.ERROR_GPU_IS_LOST }
	look, err = r.Look()
	require.NoError(t, err)
	require.True(t, look.Devices[2].Lost)
	require.False(t, look.Devices[0].Lost)
	require.Equal(t, broken.UUID, look.Devices[2].UUID, "what was read once is known")
	broken.GetMemoryInfoFunc = func() (nv.Memory, nv.Return) { return nv.Memory{}, nv.ERROR_RESET_REQUIRED }
	look, err = r.Look()
	require.NoError(t, err)
	require.False(t, look.Devices[2].Lost)
	require.Contains(t, look.Devices[2].Err, "requires a reset")
}

// part is a MIG instance as NVML gives it.
func part(uuid, name string, gi, ci int, a nv.DeviceAttributes) *mock.Device {
	d := &mock.Device{
		GetUUIDFunc:              func() (string, nv.Return) { return uuid, nv.SUCCESS },
		GetNameFunc:              func() (string, nv.Return) { return name, nv.SUCCESS },
		GetGpuInstanceIdFunc:     func() (int, nv.Return) { return gi, nv.SUCCESS },
		GetComputeInstanceIdFunc: func() (int, nv.Return) { return ci, nv.SUCCESS },
		GetAttributesFunc:        func() (nv.DeviceAttributes, nv.Return) { return a, nv.SUCCESS },
		GetMemoryInfoFunc:        func() (nv.Memory, nv.Return) { return nv.Memory{Used: 5 << 20}, nv.SUCCESS },
	}
	complete(d)
	return d
}

func TestMIGOnMocks(t *testing.T) {
	s := node(dgxh100.NewWithGPUs(gpus.Multiple(2, gpus.H100_SXM5_80GB)...))
	split := s.Devices[1].(*server.Device)
	_, ret := split.SetMigMode(nv.DEVICE_MIG_ENABLE)
	require.Equal(t, nv.SUCCESS, ret)
	slices := func(gi, ci uint32, mb uint64) nv.DeviceAttributes {
		return nv.DeviceAttributes{GpuInstanceSliceCount: gi, ComputeInstanceSliceCount: ci, MemorySizeMB: mb}
	}
	parts := map[int]nv.Device{
		0: part("MIG-a", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", 7, 0, slices(1, 1, 9856)),
		2: part("MIG-b", "NVIDIA H100 80GB HBM3", 2, 0, slices(3, 3, 40192)),
		3: part("MIG-c", "NVIDIA H100 80GB HBM3", 3, 1, slices(2, 1, 20096)),
	}
	split.GetMaxMigDeviceCountFunc = func() (int, nv.Return) { return 7, nv.SUCCESS }
	split.GetMigDeviceHandleByIndexFunc = func(i int) (nv.Device, nv.Return) {
		if d, ok := parts[i]; ok {
			return d, nv.SUCCESS
		}
		return nil, nv.ERROR_NOT_FOUND
	}
	r := reader(s)
	look, err := r.Look()
	require.NoError(t, err)
	require.False(t, look.Devices[0].MIG)
	require.Equal(t, []nvml.Instance{
		{UUID: "MIG-a", Profile: "1g.10gb", MemoryBytes: 9856 << 20, GI: 7, CI: 0},
		{UUID: "MIG-b", Profile: "3g.40gb", MemoryBytes: 40192 << 20, Number: 2, GI: 2, CI: 0},
		{UUID: "MIG-c", Profile: "1c.2g.20gb", MemoryBytes: 20096 << 20, Number: 3, GI: 3, CI: 1},
	}, look.Devices[1].Instances)
	got := look.GPUs(t.TempDir())
	require.Len(t, got, 4)
	require.Equal(t, "NVIDIA H100 80GB HBM3 MIG 3g.40gb", got[2].Model)
	require.Equal(t, split.UUID, got[2].Parent)
	load, err := r.Load()
	require.NoError(t, err)
	require.Len(t, load, 5)
	require.EqualValues(t, 5<<20, *load["MIG-a"].MemoryUsedBytes)
}

// A GPU of which it cannot be read how it is split says so, and is neither whole
// nor without instances.
func TestMIGThatCannotBeRead(t *testing.T) {
	for symbol, spoil := range map[string]func(gpu *server.Device, in *mock.Device, ret nv.Return){
		"nvmlDeviceGetMigMode": func(gpu *server.Device, _ *mock.Device, ret nv.Return) {
			gpu.GetMigModeFunc = func() (int, int, nv.Return) { return 0, 0, ret }
		},
		"nvmlDeviceGetMaxMigDeviceCount": func(gpu *server.Device, _ *mock.Device, ret nv.Return) {
			gpu.GetMaxMigDeviceCountFunc = func() (int, nv.Return) { return 0, ret }
		},
		"nvmlDeviceGetMigDeviceHandleByIndex": func(gpu *server.Device, _ *mock.Device, ret nv.Return) {
			gpu.GetMigDeviceHandleByIndexFunc = func(int) (nv.Device, nv.Return) { return nil, ret }
		},
		"nvmlDeviceGetUUID": func(_ *server.Device, in *mock.Device, ret nv.Return) {
			in.GetUUIDFunc = func() (string, nv.Return) { return "", ret }
		},
		"nvmlDeviceGetAttributes_v2": func(_ *server.Device, in *mock.Device, ret nv.Return) {
			in.GetAttributesFunc = func() (nv.DeviceAttributes, nv.Return) { return nv.DeviceAttributes{}, ret }
		},
	} {
		t.Run(symbol, func(t *testing.T) {
			s := node(dgxh100.NewWithGPUs(gpus.Multiple(1, gpus.H100_SXM5_80GB)...))
			gpu := s.Devices[0].(*server.Device)
			gpu.GetMigModeFunc = func() (int, int, nv.Return) { return nv.DEVICE_MIG_ENABLE, nv.DEVICE_MIG_ENABLE, nv.SUCCESS }
			in := part("MIG-a", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", 7, 0, nv.DeviceAttributes{MemorySizeMB: 9856})
			gpu.GetMaxMigDeviceCountFunc = func() (int, nv.Return) { return 7, nv.SUCCESS }
			gpu.GetMigDeviceHandleByIndexFunc = func(i int) (nv.Device, nv.Return) {
				if i != 3 {
					return nil, nv.ERROR_NOT_FOUND
				}
				return in, nv.SUCCESS
			}
			r := reader(s)
			look, err := r.Look()
			require.NoError(t, err)
			require.Empty(t, look.Devices[0].Err)
			require.Len(t, look.Devices[0].Instances, 1)
			spoil(gpu, in, nv.ERROR_UNKNOWN)
			look, err = r.Look()
			require.NoError(t, err)
			require.Equal(t, symbol+": unknown error", look.Devices[0].Err)
			require.False(t, look.Devices[0].Lost)
			spoil(gpu, in, nv.ERROR_GPU_IS_LOST)
			look, err = r.Look()
			require.NoError(t, err)
			require.True(t, look.Devices[0].Lost)
			spoil(gpu, in, nv.ERROR_UNINITIALIZED)
			_, err = r.Look()
			require.ErrorContains(t, err, symbol)
			if symbol == "nvmlDeviceGetUUID" { // destroyed between two calls
				spoil(gpu, in, nv.ERROR_INVALID_ARGUMENT)
				look, err = r.Look()
				require.NoError(t, err)
				require.Empty(t, look.Devices[0].Err)
				require.Empty(t, look.Devices[0].Instances)
			}
		})
	}
}

// GB10 and the like have no memory of their own to report.
func TestGPUWithoutMemoryOfItsOwn(t *testing.T) {
	s := node(dgxh100.NewWithGPUs(gpus.Multiple(1, gpus.H100_SXM5_80GB)...))
	d := s.Devices[0].(*server.Device)
	d.GetMemoryInfoFunc = func() (nv.Memory, nv.Return) { return nv.Memory{}, nv.ERROR_NOT_SUPPORTED }
	d.GetTemperatureFunc = func(nv.TemperatureSensors) (uint32, nv.Return) { return 40, nv.SUCCESS }
	// This is where the GPU's memory is, not what the GPU is attached to.
	d.GetNumaNodeIdFunc = func() (int, nv.Return) { return 5, nv.SUCCESS }
	r := reader(s)
	look, err := r.Look()
	require.NoError(t, err)
	require.Empty(t, look.Unnamed)
	require.Empty(t, look.Devices[0].Err)
	got := look.GPUs(t.TempDir())[0]
	require.Zero(t, got.MemoryMiB)
	require.Empty(t, got.NUMANode)
	load, err := r.Load()
	require.NoError(t, err)
	require.Nil(t, load[d.UUID].MemoryUsedBytes)
	require.EqualValues(t, 40, *load[d.UUID].TemperatureCelsius)
}

func TestLinksOnMocks(t *testing.T) {
	s := node(dgxh100.NewWithGPUs(gpus.Multiple(1, gpus.H100_SXM5_80GB)...))
	d := s.Devices[0].(*server.Device)
	d.GetNvLinkStateFunc = func(link int) (nv.EnableState, nv.Return) {
		switch {
		case link == 1:
			return nv.FEATURE_DISABLED, nv.SUCCESS
		case link < 4:
			return nv.FEATURE_ENABLED, nv.SUCCESS
		}
		return nv.FEATURE_DISABLED, nv.ERROR_INVALID_ARGUMENT
	}
	d.GetNvLinkRemoteDeviceTypeFunc = func(link int) (nv.IntNvLinkDeviceType, nv.Return) {
		if link == 0 {
			return nv.NVLINK_DEVICE_TYPE_GPU, nv.SUCCESS
		}
		return nv.NVLINK_DEVICE_TYPE_SWITCH, nv.SUCCESS
	}
	d.GetNvLinkRemotePciInfoFunc = func(int) (nv.PciInfo, nv.Return) {
		return nv.PciInfo{BusId: [32]int8{'0', '0', '0', '0', ':', '1', 'A', ':', '0', '0', '.', '0'}}, nv.SUCCESS
	}
	look, err := reader(s).Look()
	require.NoError(t, err)
	require.Equal(t, []nvml.Link{{Remote: "0000:1A:00.0"}, {Switch: true}}, look.Devices[0].Links)
}

// A function that the library lacks is never called: a call would end the
// process, and panics here.
func TestMissingFunctionsAreNotCalled(t *testing.T) {
	s := dgxh100.NewWithGPUs(gpus.Multiple(1, gpus.H100_SXM5_80GB)...)
	d := s.Devices[0].(*server.Device)
	d.GetMinorNumberFunc = nil
	s.DeviceGetHandleByPciBusIdFunc = func(string) (nv.Device, nv.Return) { return d, nv.SUCCESS }
	r := readerWith(s, func(symbol string) bool { return symbol == "nvmlDeviceGetArchitecture" })
	look, err := r.Look()
	require.NoError(t, err)
	require.Equal(t, "hopper", look.Devices[0].Architecture)
	require.Equal(t, -1, look.Devices[0].Minor)
	require.Contains(t, look.Missing, "nvmlDeviceGetMinorNumber")
	require.NotContains(t, look.Missing, "nvmlDeviceGetArchitecture")
	_, err = r.Load()
	require.NoError(t, err)
}

func TestNodeThatFails(t *testing.T) {
	for _, ret := range []nv.Return{nv.ERROR_UNINITIALIZED, nv.ERROR_DRIVER_NOT_LOADED, nv.ERROR_UNKNOWN} {
		s := node(dgxh100.New())
		r := reader(s)
		_, err := r.Look()
		require.NoError(t, err)
		s.DeviceGetCountFunc = func() (int, nv.Return) { return 0, ret }
		_, err = r.Look()
		require.ErrorContains(t, err, "nvmlDeviceGetCount")
	}
}
