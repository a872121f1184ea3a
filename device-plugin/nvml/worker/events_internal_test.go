package worker

import (
	"testing"

	nv "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/stretchr/testify/require"

	"remuda/device-plugin/nvml"
)

// What a GPU's registration for its XIDs gives: it is watched, it may be tried again, or it has none.
func TestRegistrationOfEvents(t *testing.T) {
	idle := make(chan struct{})
	lib := &mock.Interface{EventSetCreateFunc: func() (nv.EventSet, nv.Return) {
		return &mock.EventSet{WaitFunc: func(uint32) (nv.EventData, nv.Return) { <-idle; return nv.EventData{}, nv.ERROR_TIMEOUT }}, nv.SUCCESS
	}}
	r := NewReader(lib, func(string) bool { return true }, nil)
	e := &events{send: func(nvml.Message) {}, uuids: map[nv.Device]string{}}
	for _, tc := range []struct {
		ret  nv.Return
		want nvml.Name
	}{
		{nv.SUCCESS, nvml.Name{Events: true}},
		{nv.ERROR_UNKNOWN, nvml.Name{Refused: true, EventsErr: "the events were not registered: unknown error"}},
		{nv.ERROR_NOT_SUPPORTED, nvml.Name{EventsErr: "the events were not registered: not supported"}},
	} {
		var n nvml.Name
		e.register(r, &mock.Device{
			GetSupportedEventTypesFunc: func() (uint64, nv.Return) { return nv.EventTypeXidCriticalError, nv.SUCCESS },
			RegisterEventsFunc:         func(uint64, nv.EventSet) nv.Return { return tc.ret },
		}, &n)
		require.Equal(t, tc.want, n)
	}
	require.Len(t, lib.EventSetCreateCalls(), 1)
	var n nvml.Name
	e.register(r, &mock.Device{GetSupportedEventTypesFunc: func() (uint64, nv.Return) { return 0, nv.SUCCESS }}, &n)
	require.Equal(t, nvml.Name{EventsErr: "the GPU has no such events"}, n)
}

// Whether the wait works is reported after the first one, and once when it fails or works again.
func TestWaitThatFails(t *testing.T) {
	answers := []nv.Return{nv.ERROR_TIMEOUT, nv.ERROR_GPU_IS_LOST, nv.ERROR_GPU_IS_LOST, nv.ERROR_TIMEOUT}
	sent := make(chan nvml.Message, 10)
	e := &events{send: func(m nvml.Message) { sent <- m }, pause: 1}
	idle := make(chan struct{})
	go e.wait(&mock.EventSet{WaitFunc: func(uint32) (nv.EventData, nv.Return) {
		if len(answers) == 0 {
			<-idle
		}
		ret := answers[0]
		answers = answers[1:]
		return nv.EventData{}, ret
	}})
	require.Empty(t, (<-sent).Event.Err)
	require.Equal(t, "nvmlEventSetWait: the GPU is lost", (<-sent).Event.Err)
	require.Empty(t, (<-sent).Event.Err)
	require.Empty(t, sent)
}
