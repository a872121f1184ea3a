package nvml

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	deviceplugin "remuda/device-plugin"
)

// Look is what NVML says of a node and all its GPUs at one moment.
type Look struct {
	DriverVersion string   `json:"driver_version"`
	CUDAVersion   string   `json:"cuda_version,omitempty"`
	Missing       []string `json:"missing,omitempty"`
	// Devices are the GPUs that could be named, in NVML's order. One that could not be read has Err.
	Devices []Device `json:"devices"`
	// Unnamed says of the GPUs that could not even be named why.
	Unnamed []string `json:"unnamed,omitempty"`
}

// GPUs is what a source without a history publishes of a look. root is where
// /sys and /proc are.
func (l Look) GPUs(root string) []deviceplugin.GPU {
	var t topology
	t.learn(l.Devices)
	return facts{
		driver: l.DriverVersion, cuda: l.CUDAVersion, cliques: t.cliques(l.Devices), host: host{root: root},
		reason: func(string) string { return "" },
	}.gpus(l.Devices)
}

// Report is what a probe found.
type Report struct {
	Look Look `json:"look"`
	// Load is by the UUID of the GPU or MIG instance.
	Load map[string]Load `json:"load"`
}

// Probe starts workers by command, reads the node and each GPU once, and ends them. A call
// that takes longer than patience, or a reading that takes twice as long, is a finding about its GPU, and so is a crash; the error is one that concerns
// the node. Probe is for people who want to know what a node's NVML says; a Source does not use it.
func Probe(ctx context.Context, command []string, patience time.Duration) (Report, error) {
	report := Report{Look: Look{Devices: []Device{}}, Load: map[string]Load{}}
	skip := map[int]string{}
	for oneByOne := false; ; oneByOne = true {
		again, err := probe(ctx, command, patience, skip, oneByOne, &report)
		if err != nil || !again {
			return report, err
		}
	}
}

// probe is one attempt. It is to be made again without the GPU that crashed the worker of the node, or
// one by one if it may have been any of several.
func probe(ctx context.Context, command []string, patience time.Duration, skip map[int]string, oneByOne bool, report *Report) (again bool, err error) {
	l := limits{hang: patience, giveUp: 2 * patience}
	ask := func(p *process, slot int, answer <-chan Message) (Message, error) {
		ctx, stop := context.WithCancelCause(ctx)
		defer stop(nil)
		m, err := await(ctx, p, slot, answer, l, stop) // people wait here
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return m, err
	}
	p, err := spawn(command, "", func(Event) {})
	if err != nil {
		return false, err
	}
	defer p.kill()
	if _, err := ask(p, 0, p.first); err != nil {
		return false, err
	}
	m, err := ask(p, 0, p.ask(OpNode, 0))
	if err != nil {
		return false, err
	}
	if m.Node == nil {
		return false, errors.New("the NVML worker answered without the node")
	}
	look := &report.Look
	look.DriverVersion, look.CUDAVersion, look.Missing = m.Node.DriverVersion, m.Node.CUDAVersion, m.Node.Missing
	names, unnamed := make([]*Name, m.Node.Count), make([]error, m.Node.Count)
	devices, loads := make([]Device, m.Node.Count), make([]map[string]Load, m.Node.Count)
	var reading sync.WaitGroup
	for i := range min(m.Node.Count, MaxGPUs) {
		if text := skip[i]; text != "" {
			unnamed[i] = errors.New(text)
			continue
		}
		answer := p.ask(OpName, i)
		reading.Go(func() {
			m, err := ask(p, 1+i, answer)
			if names[i], unnamed[i] = m.Name, err; err == nil && m.Name != nil {
				devices[i], loads[i] = probeGPU(ctx, command, *m.Name, ask)
			}
		})
		if oneByOne {
			reading.Wait()
		}
	}
	reading.Wait()
	if isClosed(p.gone) && len(p.culprits) > 0 && (len(p.culprits) == 1 || !oneByOne) {
		if len(p.culprits) == 1 {
			skip[p.culprits[0]] = p.ending().Error()
		}
		return true, nil
	}
	for i := range names {
		if names[i] == nil {
			look.Unnamed = append(look.Unnamed, fmt.Sprintf("GPU %d: %v", i, unnamed[i]))
			continue
		}
		look.Devices = append(look.Devices, devices[i])
		for uuid, load := range loads[i] {
			report.Load[uuid] = load
		}
	}
	look.Devices = slices.Clip(look.Devices)
	return false, nil
}

// probeGPU reads one GPU by a worker of its own.
func probeGPU(ctx context.Context, command []string, n Name, ask func(*process, int, <-chan Message) (Message, error)) (Device, map[string]Load) {
	begin := time.Now()
	failed := func(err error) (Device, map[string]Load) {
		return Device{UUID: n.UUID, PCIBusID: n.PCIBusID, Events: n.Events, Err: err.Error(), Seconds: time.Since(begin).Seconds()}, nil
	}
	p, err := spawn(command, n.PCIBusID, func(Event) {})
	if err != nil {
		return failed(err)
	}
	defer p.kill()
	if _, err := ask(p, 0, p.first); err != nil {
		return failed(err)
	}
	m, err := ask(p, 0, p.ask(OpRead, 0))
	if err != nil || m.Reading == nil {
		return failed(errors.Join(err, ctx.Err()))
	}
	d := m.Reading.Device
	if d.UUID == "" {
		return failed(errors.New(d.Err))
	}
	d.Events, d.Seconds = n.Events, time.Since(begin).Seconds()
	return d, m.Reading.Load
}
