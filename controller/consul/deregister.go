package consul

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-hclog"
)

const (
	// deregisterTimeout bounds one call, so that a hung Consul costs one attempt.
	deregisterTimeout = 2 * time.Second
	// deregisterLimit is how long a removal is tried: by then the check has been critical
	// for as long as Consul keeps a critical engine, so that Consul removes it by itself.
	deregisterLimit = 2 * time.Minute
)

// Deregistrar removes the registrations of engines whose processes are dead. It is safe
// for concurrent use.
type Deregistrar struct {
	client    *api.Client
	transport *http.Transport
	logger    hclog.Logger
	ctx       context.Context //nolint:containedctx // ends with Close
	cancel    context.CancelFunc
	running   sync.WaitGroup
}

// NewDeregistrar talks to nobody yet.
func NewDeregistrar(address Address, logger hclog.Logger) (*Deregistrar, error) {
	client, transport, err := newClient(address)
	if err != nil {
		return nil, fmt.Errorf("consul deregistrar: %w", err)
	}
	d := &Deregistrar{client: client, transport: transport, logger: logger}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d, nil
}

// Close ends what is under way, and waits for it.
func (d *Deregistrar) Close() {
	d.cancel()
	d.running.Wait()
	d.transport.CloseIdleConnections()
}

// Remove removes the service id in the background, if its registration is that of the
// cohort: a later life of the engine keeps its own. Without a cohort it cannot be told whose
// the registration is, and it stays. It tries again while Consul is away.
func (d *Deregistrar) Remove(id, cohort string) {
	if cohort == "" {
		return
	}
	d.running.Go(func() {
		ctx, cancel := context.WithTimeout(d.ctx, deregisterLimit)
		defer cancel()
		wait := minRetry
		for logged := false; ; logged = true {
			removed, err := d.remove(ctx, id, cohort)
			switch {
			case err == nil:
				if removed {
					d.logger.Warn("removed the registration of a dead engine", "service", id)
				}
				return
			case d.ctx.Err() != nil:
				return
			case ctx.Err() != nil || errors.Is(err, ErrRefused):
				d.logger.Error("cannot remove the registration of a dead engine: its check becomes critical after its TTL", "service", id, "error", err)
				return
			case !logged:
				d.logger.Warn("cannot remove the registration of a dead engine: retrying", "service", id, "error", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(wait):
				wait = min(2*wait, maxRetry)
			}
		}
	})
}

func (d *Deregistrar) remove(ctx context.Context, id, cohort string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, deregisterTimeout)
	defer cancel()
	q := (&api.QueryOptions{}).WithContext(ctx)
	s, _, err := d.client.Agent().Service(id, q)
	if err == nil && s.Meta[metaCohort] != cohort {
		return false, nil
	}
	if err == nil {
		err = d.client.Agent().ServiceDeregisterOpts(id, q)
	}
	switch {
	case isNotFound(err):
		return false, nil
	case err != nil && refused(err):
		return false, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return err == nil, err
}
