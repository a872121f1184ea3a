package predictive

import (
	"errors"
	"fmt"
	"math"
)

// Caution is one level of the ladder.
type Caution struct {
	// Near multiplies the load of now, Far the peak of Config.FarSeconds.
	Near float64 `json:"near"`
	Far  float64 `json:"far"`
}

// Config is how a model is scaled. Start from DefaultConfig.
type Config struct {
	// Goal is the share of the requests that are to start within the target wait.
	Goal float64 `json:"goal"`
	// Ladder has the levels of caution, the leanest first, and Start the one below which a
	// model is not run in its first 20 minutes.
	Ladder []Caution `json:"ladder"`
	Start  int       `json:"start"`
	// LoadSeconds is the window of the arrival rate.
	LoadSeconds int `json:"load_seconds"`
	// FarSeconds is how far back a peak is believed to come back; at least FarColdStarts
	// cold starts.
	FarSeconds    int `json:"far_seconds"`
	FarColdStarts int `json:"far_cold_starts"`
	// HoldSeconds is for how long the highest need is held before capacity is removed.
	HoldSeconds int `json:"hold_seconds"`
	// MemorySeconds is the time constant with which the shadows forget.
	MemorySeconds int `json:"memory_seconds"`
	// Noise multiplies the square root of the load.
	Noise float64 `json:"noise"`
	// Season multiplies the forecast from yesterday and last week; 0 leaves it out.
	Season float64 `json:"season"`
	// Raise is the share that is added when capacity grows, and Lower the share that must
	// be too much before it shrinks.
	Raise float64 `json:"raise"`
	Lower float64 `json:"lower"`
	// ClearSeconds is the time in which a queue is to be worked off.
	ClearSeconds int `json:"clear_seconds"`
}

// DefaultConfig has the numbers that doc.go speaks of.
func DefaultConfig() Config {
	return Config{Goal: 0.999,
		Ladder: []Caution{{0.8, 0.5}, {0.9, 0.6}, {1, 0.65}, {1.05, 0.7}, {1.1, 0.75}, {1.15, 0.8}, {1.2, 0.9}, {1.3, 1}, {1.4, 1.1}, {1.5, 1.2}, {1.65, 1.3}, {1.85, 1.45}},
		Start:  5, LoadSeconds: 60, FarSeconds: 3600, FarColdStarts: 20, HoldSeconds: 900, MemorySeconds: 7 * 86400,
		Noise: 1, Season: 1, Raise: 0.1, Lower: 0.1, ClearSeconds: 60}
}

// MaxLadder is the most levels that there may be: each is played along.
const MaxLadder = 32

// Validate names every field that is wrong.
func (c *Config) Validate() error {
	var errs []error
	share := func(field string, v, low, high float64) {
		if !(v >= low && v <= high) {
			errs = append(errs, fmt.Errorf("%s is %v: must be %v to %v", field, v, low, high))
		}
	}
	whole := func(field string, v, low, high int) {
		if v < low || v > high {
			errs = append(errs, fmt.Errorf("%s is %d: must be %d to %d", field, v, low, high))
		}
	}
	share("goal", c.Goal, 0.5, 0.999999)
	whole("the number of levels in ladder", len(c.Ladder), 1, MaxLadder)
	for i, l := range c.Ladder {
		share(fmt.Sprintf("ladder[%d].near", i), l.Near, 0.1, 100)
		share(fmt.Sprintf("ladder[%d].far", i), l.Far, 0, 100)
		if i > 0 && (l.Near < c.Ladder[i-1].Near || l.Far < c.Ladder[i-1].Far) {
			errs = append(errs, fmt.Errorf("ladder[%d] is %v and %v: must be at least the level before it, which is %v and %v", i, l.Near, l.Far, c.Ladder[i-1].Near, c.Ladder[i-1].Far))
		}
	}
	whole("start", c.Start, 0, max(len(c.Ladder)-1, 0))
	whole("load_seconds", c.LoadSeconds, 1, 3600)
	whole("far_seconds", c.FarSeconds, 60, 7*86400)
	whole("far_cold_starts", c.FarColdStarts, 0, 1000)
	whole("hold_seconds", c.HoldSeconds, 0, 86400)
	whole("memory_seconds", c.MemorySeconds, 3600, 365*86400)
	share("noise", c.Noise, 0, 100)
	share("season", c.Season, 0, 100)
	share("raise", c.Raise, 0, 10)
	share("lower", c.Lower, 0, 0.9)
	whole("clear_seconds", c.ClearSeconds, 1, 86400)
	return errors.Join(errs...)
}

// reach is the window of the far peak, in seconds.
func (c *Config) reach(cold float64) float64 {
	return math.Max(float64(c.FarSeconds), float64(c.FarColdStarts)*cold)
}
