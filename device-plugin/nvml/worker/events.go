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
// ends.
type events struct {
	send func(nvml.Message)
	set  nv.EventSet // nil until there is one
	// settled are the GPUs that were registered, or have no such events.
	settled map[nv.Device]bool

	mu    sync.Mutex
	uuids map[nv.Device]string
}

// watch registers the GPUs that are new, and says in devices which are watched.
func (e *events) watch(r *Reader, devices []nvml.Device) {
	for _, h := range r.devices {
		if !e.settled[h.dev] {
			e.settled[h.dev] = e.register(r, h)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, uuid := range e.uuids {
		for i := range devices {
			devices[i].Events = devices[i].Events || devices[i].UUID == uuid
		}
	}
}

// register registers a GPU and says whether that is settled; else it is tried
// again at the next look.
func (e *events) register(r *Reader, h *handle) bool {
	for _, symbol := range []string{"nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2"} {
		if !r.have(symbol) {
			return true
		}
	}
	types := uint64(nv.EventTypeXidCriticalError)
	r.try("nvmlDeviceGetSupportedEventTypes", func() nv.Return {
		all, ret := h.dev.GetSupportedEventTypes()
		if ret == nv.SUCCESS {
			types &= all
		}
		return ret
	})
	if types == 0 {
		return true
	}
	first := e.set == nil
	if first {
		if r.enter("nvmlEventSetCreate", func() (ret nv.Return) { e.set, ret = r.lib.EventSetCreate(); return ret }) != nv.SUCCESS {
			e.set = nil
			return false
		}
	}
	e.mu.Lock()
	e.uuids[h.dev] = h.static.UUID // before the first event can come
	e.mu.Unlock()
	ret := r.enter("nvmlDeviceRegisterEvents", func() nv.Return { return h.dev.RegisterEvents(types, e.set) })
	if ret != nv.SUCCESS {
		e.mu.Lock()
		delete(e.uuids, h.dev)
		e.mu.Unlock()
	}
	if first {
		go e.wait(e.set)
	}
	return ret == nv.SUCCESS || absent(ret)
}

func (e *events) wait(set nv.EventSet) {
	for {
		data, ret := set.Wait(eventWait)
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
			// A lost GPU ends up here as well: the next look tells.
			e.send(nvml.Message{Event: &nvml.Event{GI: -1, CI: -1}})
			time.Sleep(eventPause)
		}
	}
}
