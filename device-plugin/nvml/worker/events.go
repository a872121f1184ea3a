package worker

import (
	"sync"
	"time"

	nv "github.com/NVIDIA/go-nvml/pkg/nvml"

	"remuda/device-plugin/nvml"
)

// eventWait is how long one wait for events takes. Events end it at once.
const eventWait = 1000 // milliseconds

// eventPause keeps a wait that fails at once from becoming a busy loop.
const eventPause = time.Second

// noInstance is what NVML sets where an event is not a MIG instance's.
const noInstance = 0xFFFFFFFF

// events reports the XIDs of the GPUs that can report them, until the process
// ends. It is safe for concurrent use.
type events struct {
	send  func(nvml.Message)
	pause time.Duration // eventPause, but in tests

	mu  sync.Mutex
	set nv.EventSet // nil until there is one
	// uuids are the registered GPUs.
	uuids map[nv.Device]string
}

// register registers a GPU, by a reader with a slot of its own, and says in n how that went.
func (e *events) register(r *Reader, dev nv.Device, n *nvml.Name) {
	for _, symbol := range []string{"nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2"} {
		if !r.have(symbol) {
			n.EventsErr = "the library lacks " + symbol
			return
		}
	}
	types := uint64(nv.EventTypeXidCriticalError)
	r.try("nvmlDeviceGetSupportedEventTypes", func() nv.Return {
		all, ret := dev.GetSupportedEventTypes()
		if ret == nv.SUCCESS {
			types &= all
		}
		return ret
	})
	if types == 0 {
		n.EventsErr = "the GPU has no such events"
		return
	}
	set, ret := e.open(r)
	if ret == nv.SUCCESS {
		e.mu.Lock()
		e.uuids[dev] = n.UUID // before the first event can come
		e.mu.Unlock()
		ret = r.enter("nvmlDeviceRegisterEvents", func() nv.Return { return dev.RegisterEvents(types, set) })
	}
	n.Events = ret == nv.SUCCESS
	n.Refused = !n.Events && !absent(ret)
	if !n.Events {
		n.EventsErr = "the events were not registered: " + text(ret)
	}
}

// open makes the set of events, once, and waits for what comes.
func (e *events) open(r *Reader) (nv.EventSet, nv.Return) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.set != nil {
		return e.set, nv.SUCCESS
	}
	ret := r.enter("nvmlEventSetCreate", func() (ret nv.Return) { e.set, ret = r.lib.EventSetCreate(); return ret })
	if ret != nv.SUCCESS {
		e.set = nil
		return nil, ret
	}
	go e.wait(e.set)
	return e.set, ret
}

// wait sends every XID, and whether the wait works: after the first wait, and when that changes.
func (e *events) wait(set nv.EventSet) {
	failing := ""
	for first := true; ; first = false {
		data, ret := set.Wait(eventWait)
		now := ""
		switch {
		case ret == nv.ERROR_TIMEOUT:
		case ret == nv.SUCCESS && data.EventType == nv.EventTypeXidCriticalError:
			e.mu.Lock()
			event := &nvml.Event{GPU: e.uuids[data.Device], XID: data.EventData, GI: -1, CI: -1}
			e.mu.Unlock()
			if data.GpuInstanceId != noInstance && data.ComputeInstanceId != noInstance {
				event.GI, event.CI = int(data.GpuInstanceId), int(data.ComputeInstanceId)
			}
			e.send(nvml.Message{Event: event})
		case ret == nv.SUCCESS:
		default:
			now = "nvmlEventSetWait: " + text(ret)
		}
		if first || now != failing {
			failing = now
			e.send(nvml.Message{Event: &nvml.Event{GI: -1, CI: -1, Err: now}})
		}
		if now != "" {
			time.Sleep(e.pause)
		}
	}
}
