package health

import (
	"slices"
	"time"
)

// Saved is what outlives the plugin of a GPU's health. It holds no more than the machine itself does,
// and only what a restart must not heal: whether the GPU can be read is seen anew.
type Saved struct {
	Faults []SavedFault `json:"faults,omitempty"`
	// Lost says that the GPU has not answered since it was lost.
	Lost bool `json:"lost,omitempty"`
	// Uncorrected is the last reading of the counter of uncorrectable errors.
	Uncorrected *uint64 `json:"uncorrected,omitempty"`
	// Warned are the times of recent warnings, Reported that of the last XID.
	Warned   []time.Time `json:"warned,omitempty"`
	Reported time.Time   `json:"reported,omitzero"`
	// Relapses and Recovered are about pauses; see Config.Relapse.
	Relapses  int       `json:"relapses,omitempty"`
	Recovered time.Time `json:"recovered,omitzero"`
}

// SavedFault is one reason against a GPU.
type SavedFault struct {
	Kind       string    `json:"kind"`
	Reason     string    `json:"reason"`
	At         time.Time `json:"at"`
	Proven     bool      `json:"proven,omitempty"`
	QuietUntil time.Time `json:"quiet_until,omitzero"`
}

// kinds are the names of the faults that are saved.
var kinds = map[faultKind]string{
	faultLost: "lost", faultReset: "reset", faultRecovery: "recovery", faultRemap: "remap", faultECC: "ecc", faultPause: "pause",
}

// Bounds of what Restore takes, so that a damaged file stays a nuisance.
const (
	maxReason   = 1 << 10
	maxRelapses = 64 // far beyond where Config.MaxQuiet bounds the pause
)

// Save returns what is to be kept of a GPU.
func (m *Machine) Save(id string) Saved {
	g := m.gpus[id]
	if g == nil {
		return Saved{}
	}
	s := Saved{Lost: g.lost, Uncorrected: g.uncorrected, Warned: slices.Clone(g.warned), Reported: g.reported,
		Relapses: g.relapses, Recovered: g.recovered}
	for kind := faultLost; kind < faultRead; kind++ {
		if f := g.faults[kind]; f != nil {
			s.Faults = append(s.Faults, SavedFault{Kind: kinds[kind], Reason: f.reason, At: f.at, Proven: f.proven, QuietUntil: f.quietUntil})
		}
	}
	return s
}

// Restore takes back what Save returned in an earlier life of the plugin. reset says that the GPU has
// been reset since, by a reboot or by a load of the driver.
func (m *Machine) Restore(id string, s Saved, reset bool) {
	g := &gpu{faults: map[faultKind]*fault{}, lost: s.Lost, uncorrected: s.Uncorrected, reported: s.Reported,
		warned:   slices.Clone(s.Warned[:min(len(s.Warned), m.cfg.StormCount)]),
		relapses: min(max(s.Relapses, 0), maxRelapses), recovered: s.Recovered}
	for _, f := range s.Faults {
		for kind, name := range kinds {
			if name == f.Kind {
				g.faults[kind] = &fault{reason: f.Reason[:min(len(f.Reason), maxReason)], at: f.At, proven: f.Proven, quietUntil: f.QuietUntil}
			}
		}
	}
	if reset {
		g.reset()
	}
	m.gpus[id] = g
}
