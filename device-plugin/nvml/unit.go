package nvml

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"remuda/device-plugin/health"
)

// unit is one GPU with the worker that reads it. The source's mu guards it.
type unit struct {
	// device is the GPU as it was last read; before that only UUID and PCIBusID are known.
	device Device
	life   lifecycle
	// proc is the process that reads the GPU, nil before the first one.
	proc *process
	// wake asks for a reading at once.
	wake chan struct{}
	// settled says that there has been a reading, or a fault, since the plugin started.
	settled bool
	// read is closed and replaced after each reading and each fault.
	read chan struct{}
	// load is what the last reading gave, which began at readAt; nil if it failed.
	load   map[string]Load
	readAt time.Time
	// lost says that the GPU was lost the last time that it was read.
	lost bool
	// late is the call that has not returned for longCall in the reading that is under way, as a sentence; empty for none.
	late string
	// fault is what is against reading the GPU now, and was logged; slow that slowness was logged.
	fault string
	slow  bool
	// eventsSaid is what was last logged of the registration of its events.
	eventsSaid string
	// keepSaid is why the last write of its faults failed, empty if it did not.
	keepSaid string
}

// adopt makes a unit for a GPU that is new, and starts its worker. The caller has mu.
func (s *Source) adopt(d Device) *unit {
	u := &unit{device: d, wake: make(chan struct{}, 1), read: make(chan struct{}),
		life: lifecycle{retry: s.cfg.Retry, maxRetry: s.cfg.Rediscover}}
	s.units = append(s.units, u)
	s.running.Go(func() { s.tend(u) })
	return u
}

// readSoon asks for a reading now and not a period later.
func (u *unit) readSoon() {
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

// tend keeps the worker of a GPU and reads the GPU every period, until the source is closed.
func (s *Source) tend(u *unit) {
	for s.ctx.Err() == nil {
		if bus := s.awaitStart(u); bus != "" {
			s.tendProcess(u, bus)
		}
	}
}

// awaitStart waits until a worker may be started and returns the GPU's bus ID, empty if the source was
// closed. While the node's worker is down so would a GPU's be.
func (s *Source) awaitStart(u *unit) string {
	for {
		s.mu.Lock()
		wait, up, changed, bus := u.life.wait(time.Now()), s.node.life.phase == ready, s.node.changed, u.device.PCIBusID
		s.mu.Unlock()
		if up && wait == 0 {
			return bus
		}
		pause := time.NewTimer(max(wait, time.Millisecond))
		if !up {
			pause.Stop()
		}
		select {
		case <-pause.C:
		case <-changed:
		case <-s.ctx.Done():
			pause.Stop()
			return ""
		}
		pause.Stop()
	}
}

// tendProcess reads the GPU by one process until that is of no more use.
func (s *Source) tendProcess(u *unit, bus string) {
	s.metrics.starts.Inc()
	began := time.Now()
	p, err := spawn(s.cfg.Command, bus, func(Event) {})
	if err != nil {
		s.fail(u, err, true)
		return
	}
	defer func() {
		if !p.kill() {
			// A driver that hangs must not collect processes.
			s.fail(u, fmt.Errorf("NVML hangs inside the driver: its process %d cannot be killed", p.cmd.Process.Pid), false)
			select {
			case <-p.gone:
			case <-s.ctx.Done():
			}
		}
	}()
	s.mu.Lock()
	u.life.started()
	u.proc = p
	s.mu.Unlock()
	hangs := func(err error) { s.fail(u, err, false) }
	l := limits{late: longCall, hang: s.cfg.Hang, giveUp: s.cfg.StartGiveUp}
	if _, err := await(s.ctx, p, 0, p.first, l, hangs); err != nil {
		s.fail(u, err, true)
		return
	}
	for {
		at := time.Now()
		m, err := await(s.ctx, p, 0, p.ask(OpRead, 0), l, hangs)
		if s.ctx.Err() != nil {
			return
		}
		if err == nil && m.Reading == nil {
			err = errors.New("the NVML worker answered without a reading")
		}
		if err != nil {
			s.fail(u, err, true)
			return
		}
		lost := s.take(u, *m.Reading, at)
		l.giveUp = s.cfg.GiveUp
		period := time.NewTimer(s.cfg.Period)
		select {
		case <-period.C:
		case <-u.wake:
		case <-p.gone:
		case <-s.ctx.Done():
		}
		period.Stop()
		if lost && time.Since(began) >= s.cfg.Rediscover {
			s.mu.Lock()
			u.life.renewed()
			s.mu.Unlock()
			return
		}
	}
}

// take takes in a reading and says whether the GPU is found only by an NVML that is initialised anew.
func (s *Source) take(u *unit, r Reading, at time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := r.Device
	if d.UUID != "" && d.UUID != u.device.UUID {
		d = Device{Lost: true, Err: "another GPU is in its place: " + d.UUID}
	}
	if d.UUID == "" { // it could not be opened
		lost, err := d.Lost, d.Err
		d = u.device
		d.Lost, d.Err = lost, err
	}
	d.Events = u.device.Events
	d.Seconds = time.Since(at).Seconds()
	if d.Lost || d.Err != "" { // a GPU that does not answer cannot say how it is split
		d.MIG, d.Instances = u.device.MIG, u.device.Instances
	}
	if d.empty() && (!u.settled || !u.device.empty()) {
		s.log.Warn("the GPU is in MIG mode without instances: it offers no seats", "gpu", d.UUID)
	}
	if u.fault != "" {
		s.log.Info("NVML reads the GPU again", "gpu", d.UUID, "was", u.fault)
	}
	if slow := d.Seconds > s.cfg.Hang.Seconds(); slow != u.slow {
		u.slow = slow
		if slow {
			s.log.Warn("NVML is slow for this GPU: every call returns, but a reading takes long", "gpu", d.UUID, "seconds", d.Seconds)
		}
	}
	if u.lost && !d.Lost && d.Err == "" {
		s.node.renew = true // a GPU that was reset has to be registered for its XIDs again
	}
	u.lost = d.Lost
	gone := u.device.ids()
	u.device, u.settled, u.late, u.fault, u.load, u.readAt = d, true, "", "", r.Load, at
	u.life.answered()
	s.observe(u, health.Reading{Lost: d.Lost, Err: d.Err, Uncorrected: d.Uncorrected, RemapFailed: d.RemapFailed, Recovery: d.Recovery})
	now := d.ids()
	s.machine.Forget(func(id string) bool { return !slices.Contains(gone, id) || slices.Contains(now, id) })
	s.announce(u)
	return d.Lost || d.Err != ""
}

// fail takes in that a GPU could not be read. ended says that its process is gone, or must go.
func (s *Source) fail(u *unit, err error, ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return
	}
	text, cause := err.Error(), causeOf(err)
	u.late = ""
	if cause == causeLate {
		s.log.Warn("NVML is slow for this GPU: no task gets it until the call returns", "gpu", u.device.UUID, "pci_bus_id", u.device.PCIBusID, "error", text)
		u.late = text
		s.announce(u)
		return
	}
	if ended {
		u.life.ended(time.Now())
	} else {
		u.life.hangs()
	}
	if text != u.fault {
		s.log.Warn("NVML fails for this GPU", "gpu", u.device.UUID, "pci_bus_id", u.device.PCIBusID, "error", text, "next_start", u.life.wait(time.Now()))
	}
	if ended && cause != causeHang || text != u.fault {
		s.metrics.faults.WithLabelValues(u.device.UUID, cause).Inc()
	}
	if ended && cause == causeCrash && u.life.failures == 1 { // further ones in a row are the same trouble
		s.machine.Crashed(u.device.UUID, text, s.cfg.Clock())
	}
	u.fault, u.load = text, nil
	// One crash may be an accident, a second one in a row is not, and neither is a hang. While the
	// first is looked into, the GPU keeps the health that it had.
	certain := !ended || u.life.failures > 1 || cause == causeHang
	if certain {
		u.settled = true
		s.observe(u, health.Reading{Err: text, Certain: true})
	}
	s.announce(u)
}

// observe passes a reading of a GPU on to the health machine. If the operator removed the GPU's file, the
// machine forgets the GPU's faults first.
func (s *Source) observe(u *unit, r health.Reading) {
	now := s.cfg.Clock()
	if s.store.cleared(u.device.UUID) {
		s.log.Warn("the operator removed the GPU's file: what was against it is forgotten", "gpu", u.device.UUID)
		for _, id := range u.device.ids() {
			s.machine.Clear(id)
		}
	}
	s.machine.Observe(u.device.UUID, r, now)
	for _, in := range u.device.Instances {
		s.machine.Observe(in.UUID, health.Reading{Lost: r.Lost, Err: r.Err, Certain: r.Certain}, now)
	}
}

// announce wakes the callers that wait for a reading, and passes the news on.
func (s *Source) announce(u *unit) {
	close(u.read)
	u.read = make(chan struct{})
	s.touch(u)
}

// loadSince returns the load of a GPU, read at begin or later; nil if the GPU has no load, fails, or was
// not read before ctx ended.
func (s *Source) loadSince(ctx context.Context, u *unit, begin time.Time) map[string]Load {
	for {
		s.mu.Lock()
		load, at, read, failing := u.load, u.readAt, u.read, u.fault != ""
		s.mu.Unlock()
		switch {
		case !at.Before(begin):
			return load
		case failing:
			return nil
		}
		select {
		case <-read:
		case <-ctx.Done():
			return nil
		}
	}
}

// empty says that a device is known to be in MIG mode without instances.
func (d Device) empty() bool { return d.MIG && len(d.Instances) == 0 }

// ids are the UUIDs of a GPU and of its instances.
func (d Device) ids() []string {
	ids := []string{d.UUID}
	for _, in := range d.Instances {
		ids = append(ids, in.UUID)
	}
	return ids
}

// static is a device without what a reading says of its health, so that it stays the same.
func (d Device) static() Device {
	d.Events, d.Seconds, d.Lost, d.Err = false, 0, false, ""
	d.Uncorrected, d.Recovery, d.RemapPending, d.RemapFailed = nil, nil, false, false
	d.RemappedCorrectable, d.RemappedUncorrectable, d.SRAMExceeded = nil, nil, nil
	return d
}
