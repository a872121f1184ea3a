package observe

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Observer sees a model. Its methods may be called from several goroutines at once.
type Observer interface {
	// Observe answers a Snapshot. An error means that nothing at all is known.
	Observe(ctx context.Context, t Target) (Snapshot, error)
}

// Config says whom to ask. At least one of Controller and Metrics must be there.
type Config struct {
	// Controller has models; nil: every Target is plain job groups.
	Controller Controller
	// Metrics has engines; nil: their load is unknown.
	Metrics Reporter
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

type observer struct{ cfg Config }

var _ Observer = (*observer)(nil)

// New makes an Observer that asks the sources of cfg when it is asked. It starts nothing.
func New(cfg Config) (Observer, error) {
	if cfg.Controller == nil && cfg.Metrics == nil {
		return nil, errors.New("observe: controller and metrics source are not set: must have at least one")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &observer{cfg}, nil
}

// Observe asks the controller and then, knowing what should be there, about the engines.
func (o *observer) Observe(ctx context.Context, t Target) (Snapshot, error) {
	if err := t.Validate(); err != nil {
		return Snapshot{}, err
	}
	var seen seen
	if o.cfg.Controller != nil {
		m, err := o.cfg.Controller.Model(ctx, t.Model)
		switch {
		case err == nil:
			seen.managed = &m
		case errors.Is(err, ErrUnknownModel):
			seen.unmanaged = true
		default:
			seen.controllerErr = err
		}
	}
	if o.cfg.Metrics != nil {
		seen.metricsName = o.cfg.Metrics.Name()
		seen.report, seen.metricsErr = o.cfg.Metrics.Report(ctx, seen.question(t))
	}
	if seen.managed == nil {
		err := errors.Join(seen.controllerErr, seen.metricsErr)
		if seen.metricsErr != nil || o.cfg.Metrics == nil && err != nil {
			return Snapshot{}, fmt.Errorf("observe model %q: no data: %w", t.Model, err)
		}
		if o.cfg.Metrics == nil {
			return Snapshot{}, fmt.Errorf("observe model %q: %w, and no metrics source is set", t.Model, ErrUnknownModel)
		}
	}
	return seen.snapshot(t, o.cfg.Now()), nil
}
