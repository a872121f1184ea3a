// Package controlled asks the controller how many replicas a model has, of which variants,
// and how many requests wait for it.
//
// It guarantees that an answer is the leader's own (only it knows queues and what cannot be
// placed), is one consistent view of the model, and is at most Config.MaxAge old. It changes
// nothing in the controller.
package controlled

import (
	"context"
	"errors"
	"fmt"
	"time"

	"remuda/autoscaler-plugin/observe"
	"remuda/autoscaler-plugin/observe/kept"
	"remuda/controller/api"
)

// Client is what is needed of the controller's client.
type Client interface {
	Model(ctx context.Context, name string, q api.QueryOptions) (api.ModelStatus, api.QueryMeta, error)
}

var _ Client = (*api.Client)(nil)

// Config says whom to ask and how often.
type Config struct {
	// Client of the controller. Required.
	Client Client
	// Every is how often a model that somebody asks for is asked for again in the
	// background, MaxAge how old an answer may be.
	Every, MaxAge time.Duration
	// IdleAfter is how long a model is asked for that nobody wants.
	IdleAfter time.Duration
	// Timeout bounds one question. Pause is for how long a failure is remembered.
	Timeout, Pause time.Duration
	// Concurrency is how many models are asked for at once in the background, MaxModels how
	// many are kept at hand.
	Concurrency, MaxModels int
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// DefaultConfig has the reasons beside the numbers; Client is left to the caller.
func DefaultConfig() Config {
	return Config{
		Every:       4 * time.Second,  // nomad-autoscaler evaluates every 10 s: two chances in between
		MaxAge:      9 * time.Second,  // below that, so that no evaluation sees the one before it
		IdleAfter:   10 * time.Minute, // twice nomad-autoscaler's cooldown, in which it does not ask
		Timeout:     4 * time.Second,  // an election takes a second or two
		Pause:       time.Second,
		Concurrency: 8, // of a server that may be electing
		MaxModels:   100_000,
	}
}

// Source is an observe.Controller.
type Source struct {
	cache *kept.Cache[string, observe.Managed]
}

var _ observe.Controller = (*Source)(nil)

// New checks cfg; it talks to nobody.
func New(cfg Config) (*Source, error) {
	if cfg.Client == nil {
		return nil, errors.New("controller source: client is not set")
	}
	now := cfg.Now
	if now == nil {
		now = time.Now
	}
	cache, err := kept.New(kept.Config[string, observe.Managed]{
		Fetch: func(ctx context.Context, model string) (observe.Managed, error) {
			return ask(ctx, cfg.Client, model, now)
		},
		Every: cfg.Every, MaxAge: cfg.MaxAge, IdleAfter: cfg.IdleAfter, Timeout: cfg.Timeout, Pause: cfg.Pause,
		Concurrency: cfg.Concurrency, MaxKeys: cfg.MaxModels, Now: cfg.Now,
	})
	if err != nil {
		return nil, fmt.Errorf("controller source: %w", err)
	}
	return &Source{cache}, nil
}

// Run keeps answers at hand until ctx ends, and returns its error. Model works without it.
func (s *Source) Run(ctx context.Context) error { return s.cache.Run(ctx) }

// Model answers what the controller has of a model; observe.ErrUnknownModel where it has
// none of that name.
func (s *Source) Model(ctx context.Context, model string) (observe.Managed, error) {
	m, err := s.cache.Get(ctx, model, model)
	if err != nil {
		return observe.Managed{}, fmt.Errorf("query the controller for model %q: %w", model, err)
	}
	return m, nil
}

func ask(ctx context.Context, c Client, model string, now func() time.Time) (observe.Managed, error) {
	// A read that is not stale is answered by the leader.
	status, _, err := c.Model(ctx, model, api.QueryOptions{})
	var no *api.Error
	if errors.As(err, &no) && no.Code == api.CodeNotFound {
		return observe.Managed{}, fmt.Errorf("%w: %w", observe.ErrUnknownModel, err)
	}
	if err != nil {
		return observe.Managed{}, err
	}
	return managed(status, now().Round(0).UTC()), nil
}
