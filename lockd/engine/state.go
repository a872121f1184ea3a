package engine

import (
	"fmt"
	"time"

	"remuda/internal/replica"
)

// State is where an engine stands between start and death.
type State string

// The states of an engine.
const (
	// Init: the engine loads its model. Not discoverable, not live.
	Init State = "init"
	// Standby: initialised and idle, asleep where the engine can sleep.
	Standby State = "standby"
	// Waking: weights are coming back; a deadline runs.
	Waking State = "waking"
	// Active: serving and registered in Consul.
	Active State = "active"
	// Draining: deregistered, finishing what it has.
	Draining State = "draining"
	// Dead: the engine is gone or must go; the process is about to exit.
	Dead State = "dead"
)

// next lists the allowed transitions. Draining may return to Active: a drain
// that nobody follows up with a sleep is called off by a wake.
var next = map[State][]State{
	Init:     {Standby, Dead},
	Standby:  {Waking, Dead},
	Waking:   {Active, Dead},
	Active:   {Draining, Dead},
	Draining: {Standby, Active, Dead},
}

// Machine is the engine's state with the rules for leaving it. It is plain
// data: the caller passes the time and guards it with a lock.
type Machine struct {
	role string
	// locked tells that a lock decides who serves, and not the role.
	locked bool
	state  State
	since  time.Time
	// wakeBy is when a wake has failed; meaningful in Waking.
	wakeBy time.Time
	// unhealthy is why the engine cannot serve, "" while it can.
	unhealthy string
	// wanted is Warm while standing by is all that is asked of the engine.
	wanted Tier
}

// NewMachine starts in Init. role is replica.RolePrimary or RoleShadow; locked
// tells that a lock decides who serves, and not the role.
func NewMachine(role string, locked bool, now time.Time) *Machine {
	return &Machine{role: role, locked: locked, state: Init, since: now}
}

// State is the current state.
func (m *Machine) State() State { return m.state }

// Since is when the current state was entered.
func (m *Machine) Since() time.Time { return m.since }

// To moves to state s, or says why that is not allowed. Entering Waking needs
// the deadline that Wake sets.
func (m *Machine) To(s State, now time.Time) error {
	for _, allowed := range next[m.state] {
		if s == allowed {
			m.state, m.since = s, now
			if s == Active || s == Standby {
				m.unhealthy = ""
			}
			return nil
		}
	}
	return fmt.Errorf("engine is %s: cannot become %s", m.state, s)
}

// Wake moves to Waking, which fails once timeout has passed.
func (m *Machine) Wake(now time.Time, timeout time.Duration) error {
	if err := m.To(Waking, now); err != nil {
		return err
	}
	m.wakeBy = now.Add(timeout)
	return nil
}

// SetUnhealthy notes why an Active engine cannot serve; "" means it can.
func (m *Machine) SetUnhealthy(why string) { m.unhealthy = why }

// SetWanted notes what is wanted of the replica. While that is Warm, the engine stands by until
// a client wakes it, whatever its role.
func (m *Machine) SetWanted(tier Tier) { m.wanted = tier }

// Live is the liveness probe's answer for the state and the role: nil means alive. An
// engine that is not live should be killed by whoever probes it, except in
// Init, which a start-up budget covers.
func (m *Machine) Live(now time.Time) error {
	switch m.state {
	case Init:
		return fmt.Errorf("engine has been initialising for %s", now.Sub(m.since).Round(time.Millisecond))
	case Standby, Draining:
		return nil
	case Waking:
		if now.After(m.wakeBy) {
			return fmt.Errorf("the wake exceeded its deadline by %s", now.Sub(m.wakeBy).Round(time.Millisecond))
		}
		return nil
	case Active:
		if m.unhealthy != "" {
			return fmt.Errorf("engine is active but cannot serve: %s", m.unhealthy)
		}
		return nil
	default:
		return fmt.Errorf("engine is %s", m.state)
	}
}

// Ready tells whether the engine does what is asked of it now: a primary without
// a lock serves unless the replica is to be warm; the others serve or stand by for the moment
// they must.
func (m *Machine) Ready(now time.Time) error {
	if err := m.Live(now); err != nil {
		return err
	}
	if m.state == Active || m.state == Standby && (m.locked || m.wanted == Warm || m.role == replica.RoleShadow) {
		return nil
	}
	return fmt.Errorf("%s engine is %s", m.role, m.state)
}
