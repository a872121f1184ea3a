package nvml

import (
	"context"
	"errors"
	"fmt"
	"maps"
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

// Probe starts workers by command, reads the node and each GPU once, and ends them. A call that takes longer
// than patience, or a reading that takes twice as long, is a finding about its GPU, and so are a crash and a
// call that has not returned when ctx ends. Where ctx ends while no call is long, the text of the finding has
// Unfinished. The error is one that concerns the node. Probe is for people
// who want to know what a node's NVML says; a Source does not use it.
func Probe(ctx context.Context, command []string, patience time.Duration) (Report, error) {
	p := &prober{ctx: ctx, began: time.Now(), command: command, limits: limits{hang: patience, giveUp: 2 * patience}, skip: map[int]error{}}
	names, again, err := p.names(false)
	if err != nil {
		return Report{Look: p.look}, err
	}
	for again && err == nil { // an error, as the end of ctx, leaves what is known so far
		var found []*Name
		if found, again, err = p.names(true); err == nil {
			names = found
		}
	}
	report := Report{Look: p.look, Load: map[string]Load{}}
	devices, loads := make([]Device, len(names)), make([]map[string]Load, len(names))
	var reading sync.WaitGroup
	for i, n := range names {
		if n != nil {
			reading.Go(func() { devices[i], loads[i] = p.gpu(*n) })
		}
	}
	reading.Wait()
	report.Look.Devices = []Device{}
	for i, n := range names {
		if err := p.skip[i]; n == nil && err != nil {
			report.Look.Unnamed = append(report.Look.Unnamed, fmt.Sprintf("GPU %d: %v", i, err))
			continue
		} else if n == nil {
			report.Look.Unnamed = append(report.Look.Unnamed, fmt.Sprintf("GPU %d: its naming "+Unfinished+", because of the others", i))
			continue
		}
		report.Look.Devices = append(report.Look.Devices, devices[i])
		maps.Copy(report.Load, loads[i])
	}
	return report, nil
}

// prober is one Probe.
type prober struct {
	ctx     context.Context
	began   time.Time
	command []string
	limits  limits
	look    Look // of the node
	// skip has why GPUs cannot be named, by number.
	skip map[int]error
}

// Unfinished is in the text of what a probe says where its ctx ended while no call of NVML was long: the machine
// may be busy, and nothing is known to be broken.
const Unfinished = "has not finished"

// ask waits for the answer of a process whose call is in a slot. A call that hangs is an error.
func (p *prober) ask(proc *process, slot int, answer <-chan Message) (Message, error) {
	asked := time.Now()
	ctx, stop := context.WithCancelCause(p.ctx)
	defer stop(nil)
	m, err := await(ctx, proc, slot, answer, p.limits, stop) // people wait here
	switch symbol, since := proc.call(slot); {
	case err == nil || ctx.Err() == nil:
		return m, err
	case p.ctx.Err() == nil:
		return m, context.Cause(ctx)
	case since >= longCall && since >= time.Since(asked)/2: // one call took most of the time that was left
		return m, faultOf(causeHang, "%s has not returned for %.1f s", at(slot, symbol), since.Seconds())
	case symbol == "":
		return m, faultOf(causeSlow, "NVML %s in %.1f s", Unfinished, time.Since(p.began).Seconds())
	default:
		return m, faultOf(causeSlow, "NVML %s in %.1f s, and is now in %s", Unfinished, time.Since(p.began).Seconds(), at(slot, symbol))
	}
}

// start starts a process, which the caller ends. One that hangs inside the driver is not waited for.
func (p *prober) start(gpu string) (*process, error) {
	proc, err := spawn(p.command, gpu, func(Event) {})
	if err != nil {
		return nil, err
	}
	if _, err := p.ask(proc, 0, proc.first); err != nil {
		_ = proc.cmd.Process.Kill()
		return nil, err
	}
	return proc, nil
}

// names reads the node and names its GPUs: nil for one in skip. It is to be called again, one by one, if a
// GPU crashed the process, and then without the one that crashed it, or still hangs in it.
func (p *prober) names(oneByOne bool) (names []*Name, again bool, err error) {
	proc, err := p.start("")
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = proc.cmd.Process.Kill() }()
	m, err := p.ask(proc, 0, proc.ask(OpNode, 0))
	if err != nil {
		return nil, false, err
	}
	if m.Node == nil {
		return nil, false, errors.New("the NVML worker answered without the node")
	}
	p.look = Look{DriverVersion: m.Node.DriverVersion, CUDAVersion: m.Node.CUDAVersion, Missing: m.Node.Missing}
	names = make([]*Name, min(m.Node.Count, MaxGPUs))
	errs := make([]error, len(names))
	var naming sync.WaitGroup
	for i := range names {
		if p.skip[i] != nil {
			continue
		}
		answer := proc.ask(OpName, i)
		naming.Go(func() {
			m, err := p.ask(proc, 1+i, answer)
			names[i], errs[i] = m.Name, err
		})
		if oneByOne {
			if naming.Wait(); errs[i] != nil {
				p.skip[i] = errs[i]
				return names, true, nil
			}
		}
	}
	naming.Wait()
	crashed := isClosed(proc.gone) && len(proc.culprits) > 0
	for i, err := range errs {
		if err != nil && (!crashed || len(proc.culprits) == 1 && proc.culprits[0] == i) {
			p.skip[i] = err
		}
	}
	return names, crashed, nil
}

// gpu reads one GPU by a process of its own.
func (p *prober) gpu(n Name) (Device, map[string]Load) {
	begin := time.Now()
	failed := func(err error) (Device, map[string]Load) {
		return Device{UUID: n.UUID, PCIBusID: n.PCIBusID, Events: n.Events, Err: err.Error(), Seconds: time.Since(begin).Seconds()}, nil
	}
	proc, err := p.start(n.PCIBusID)
	if err != nil {
		return failed(err)
	}
	defer func() { _ = proc.cmd.Process.Kill() }()
	m, err := p.ask(proc, 0, proc.ask(OpRead, 0))
	if err != nil {
		return failed(err)
	}
	if m.Reading == nil {
		return failed(errors.New("the NVML worker answered without a reading"))
	}
	d := m.Reading.Device
	if d.UUID == "" {
		return failed(errors.New(d.Err))
	}
	d.Events, d.Seconds = n.Events, time.Since(begin).Seconds()
	return d, m.Reading.Load
}
