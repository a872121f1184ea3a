package worker

import (
	"testing"

	nv "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/stretchr/testify/require"

	"remuda/device-plugin/nvml"
)

// A GPU that cannot be registered for its events at first is tried again: the
// worker may live for months.
func TestEventsAreRegisteredUntilItWorks(t *testing.T) {
	answers := []nv.Return{nv.ERROR_UNKNOWN, nv.ERROR_GPU_IS_LOST, nv.SUCCESS}
	refusing := 0
	gpu := func(answer func() nv.Return) *mock.Device {
		return &mock.Device{
			GetSupportedEventTypesFunc: func() (uint64, nv.Return) { return nv.EventTypeXidCriticalError, nv.SUCCESS },
			RegisterEventsFunc:         func(uint64, nv.EventSet) nv.Return { return answer() },
		}
	}
	idle := make(chan struct{})
	lib := &mock.Interface{EventSetCreateFunc: func() (nv.EventSet, nv.Return) {
		return &mock.EventSet{WaitFunc: func(uint32) (nv.EventData, nv.Return) { <-idle; return nv.EventData{}, nv.ERROR_TIMEOUT }}, nv.SUCCESS
	}}
	r := NewReader(lib, func(string) bool { return true })
	r.devices[0] = &handle{static: nvml.Device{UUID: "GPU-1"}, dev: gpu(func() nv.Return {
		ret := answers[0]
		answers = answers[1:]
		return ret
	})}
	r.devices[1] = &handle{static: nvml.Device{UUID: "GPU-2"}, dev: gpu(func() nv.Return { refusing++; return nv.ERROR_NOT_SUPPORTED })}
	e := &events{send: func(nvml.Message) {}, settled: map[nv.Device]bool{}, uuids: map[nv.Device]string{}}
	for _, want := range []bool{false, false, true, true} {
		devices := []nvml.Device{{UUID: "GPU-1"}, {UUID: "GPU-2"}}
		e.watch(r, devices)
		require.Equal(t, want, devices[0].Events)
		require.False(t, devices[1].Events)
	}
	require.Empty(t, answers, "and it is not registered twice")
	require.Equal(t, 1, refusing)
}
