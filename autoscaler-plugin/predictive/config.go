package predictive

import (
	"errors"
	"fmt"
)

// Config is how a model is scaled. Start from DefaultConfig.
type Config struct {
	// Goal is the share of the requests that are to start within the target wait.
	Goal float64 `json:"goal"`
	// PaybackSeconds is the time within which a removed replica must not be needed again.
	PaybackSeconds int `json:"payback_seconds"`
	// DecaySeconds is the time constant with which a past peak of demand is forgotten.
	DecaySeconds int `json:"decay_seconds"`
	// MemorySeconds is the time constant with which forecast errors are forgotten.
	MemorySeconds int `json:"memory_seconds"`
	// Slack is the share of capacity that must be too much before any is removed.
	Slack float64 `json:"slack"`
	// Caution divides the risk of a shortage that a removal may take.
	Caution float64 `json:"caution"`
	// Gain is how far a day's budget of late requests moves the logarithm of the risk.
	Gain float64 `json:"gain"`
	// Season tells whether yesterday and last week are looked at.
	Season bool `json:"season"`
}

// DefaultConfig has the numbers that docs/benchmarks.md registers.
func DefaultConfig() Config {
	return Config{Goal: 0.999, PaybackSeconds: 900, DecaySeconds: 7200, MemorySeconds: 7 * 86400, Slack: 0.1, Caution: 5, Gain: 0.5, Season: true}
}

// Validate names every field that is wrong.
func (c *Config) Validate() error {
	var errs []error
	number := func(field string, v, low, high float64) {
		if !(v >= low && v <= high) {
			errs = append(errs, fmt.Errorf("%s is %v: must be %v to %v", field, v, low, high))
		}
	}
	number("goal", c.Goal, 0.5, 0.999999)
	number("payback_seconds", float64(c.PaybackSeconds), 60, 86400)
	number("decay_seconds", float64(c.DecaySeconds), 60, 7*86400)
	number("memory_seconds", float64(c.MemorySeconds), 3600, 365*86400)
	number("slack", c.Slack, 0, 0.9)
	number("caution", c.Caution, 0.01, 1000)
	number("gain", c.Gain, 0, 100)
	return errors.Join(errs...)
}
