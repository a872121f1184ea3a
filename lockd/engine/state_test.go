package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/replica"
	"remuda/lockd/engine"
)

func TestMachineAllowsOnlyTheDesignsTransitions(t *testing.T) {
	all := []engine.State{engine.Init, engine.Standby, engine.Waking, engine.Active, engine.Draining, engine.Dead}
	paths := map[engine.State][]engine.State{
		engine.Init:     {},
		engine.Standby:  {engine.Standby},
		engine.Waking:   {engine.Standby, engine.Waking},
		engine.Active:   {engine.Standby, engine.Waking, engine.Active},
		engine.Draining: {engine.Standby, engine.Waking, engine.Active, engine.Draining},
		engine.Dead:     {engine.Dead},
	}
	allowed := map[engine.State][]engine.State{
		engine.Init:     {engine.Standby, engine.Dead},
		engine.Standby:  {engine.Waking, engine.Dead},
		engine.Waking:   {engine.Active, engine.Dead},
		engine.Active:   {engine.Draining, engine.Dead},
		engine.Draining: {engine.Standby, engine.Active, engine.Dead},
		engine.Dead:     {},
	}
	now := time.Now()
	for from, path := range paths {
		for _, to := range all {
			m := engine.NewMachine(replica.RolePrimary, false, now)
			for _, s := range path {
				require.NoError(t, m.To(s, now))
			}
			err := m.To(to, now)
			if contains(allowed[from], to) {
				require.NoError(t, err, "%s to %s", from, to)
				require.Equal(t, to, m.State())
			} else {
				require.Error(t, err, "%s to %s", from, to)
				require.Equal(t, from, m.State(), "a refused transition changes nothing")
			}
		}
	}
}

func contains(list []engine.State, s engine.State) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

func TestProbesAreRoleAware(t *testing.T) {
	start := time.Now()
	for _, tc := range []struct {
		name        string
		role        string
		prepare     func(*engine.Machine)
		after       time.Duration
		live, ready bool
	}{
		{"init", replica.RolePrimary, func(*engine.Machine) {}, 0, false, false},
		{"standby primary", replica.RolePrimary, standby, 0, true, false},
		{"standby shadow", replica.RoleShadow, standby, 0, true, true},
		{"waking", replica.RolePrimary, waking, 9 * time.Second, true, false},
		{"waking at its deadline", replica.RolePrimary, waking, 10 * time.Second, true, false},
		{"waking past its deadline", replica.RoleShadow, waking, 10*time.Second + 1, false, false},
		{"active", replica.RolePrimary, active, time.Hour, true, true},
		{"active shadow", replica.RoleShadow, active, time.Hour, true, true},
		{"active but sick", replica.RolePrimary, func(m *engine.Machine) { active(m); m.SetUnhealthy("hangs") }, 0, false, false},
		{"active again", replica.RolePrimary, func(m *engine.Machine) { active(m); m.SetUnhealthy("hangs"); m.SetUnhealthy("") }, 0, true, true},
		{"draining", replica.RolePrimary, func(m *engine.Machine) { active(m); to(m, engine.Draining) }, 0, true, false},
		{"dead", replica.RolePrimary, func(m *engine.Machine) { to(m, engine.Dead) }, 0, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := engine.NewMachine(tc.role, false, start)
			tc.prepare(m)
			now := start.Add(tc.after)
			require.Equal(t, tc.live, m.Live(now) == nil, "live: %v", m.Live(now))
			require.Equal(t, tc.ready, m.Ready(now) == nil, "ready: %v", m.Ready(now))
		})
	}
}

func to(m *engine.Machine, s engine.State) {
	if err := m.To(s, m.Since()); err != nil {
		panic(err)
	}
}

func standby(m *engine.Machine) { to(m, engine.Standby) }

func waking(m *engine.Machine) {
	standby(m)
	if err := m.Wake(m.Since(), 10*time.Second); err != nil {
		panic(err)
	}
}

func active(m *engine.Machine) { waking(m); to(m, engine.Active) }
