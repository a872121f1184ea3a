package observe

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"

	"remuda/internal/replica"
)

// Watcher lists the engines: it calls update with all of them, at first and after each
// change, and lost once when it has no connection any more, both from one goroutine, and
// returns when ctx ends. *consul.Watcher of remuda/controller/consul is one.
type Watcher interface {
	Watch(ctx context.Context, update func(engines []replica.Engine, afterOutage bool), lost func()) error
}

// ScrapeConfig says what a Scraper reads and how often.
type ScrapeConfig struct {
	// Watcher lists the engines. Required.
	Watcher Watcher
	// Interval is from one reading of an engine to the next.
	Interval time.Duration
	// Timeout bounds one reading.
	Timeout time.Duration
	// FirstWait is how long Report waits for Consul's first answer, and then for the first
	// reading of a model that nobody asked for before.
	FirstWait time.Duration
	// IdleAfter is how long a model is read that nobody asks for.
	IdleAfter time.Duration
	// Concurrency is how many engines are read at once.
	Concurrency int
	// Now is the clock; nil: time.Now.
	Now    func() time.Time
	Logger hclog.Logger
}

// DefaultScrapeConfig has the reasons beside the numbers; Watcher is left to the caller.
func DefaultScrapeConfig() ScrapeConfig {
	return ScrapeConfig{
		Interval:    5 * time.Second, // two readings between evaluations of nomad-autoscaler, which come every 10 s
		Timeout:     2 * time.Second, // a busy engine answers within its step time; a page takes milliseconds
		FirstWait:   3 * time.Second,
		IdleAfter:   10 * time.Minute, // twice nomad-autoscaler's cooldown, in which it does not ask
		Concurrency: 32,
		Logger:      hclog.NewNullLogger(),
	}
}

func (c *ScrapeConfig) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Watcher == nil || c.Logger == nil {
		bad("watcher and logger must be set")
	}
	for _, d := range []struct {
		field string
		value time.Duration
	}{{"interval", c.Interval}, {"timeout", c.Timeout}, {"first wait", c.FirstWait}, {"idle after", c.IdleAfter}} {
		if d.value <= 0 {
			bad("%s is %s: must be more than 0", d.field, d.value)
		}
	}
	if c.Concurrency < 1 {
		bad("concurrency is %d: must be 1 or more", c.Concurrency)
	}
	return errors.Join(errs...)
}
