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

	"remuda/internal/replica"
)

// ErrRefused is wrapped when Consul answered and said no: a bad token, a
// malformed registration. Trying again will not help.
var ErrRefused = errors.New("rejected by Consul")

// RegistrarConfig says how one engine is registered.
type RegistrarConfig struct {
	Address Address
	// Cohort identifies this life of the engine. Required.
	Cohort string
	// TTL is how long Consul believes a push. A shim that hangs is critical
	// after it; a shim that dies is deregistered much sooner by lockd.
	// Pushes come three times per TTL.
	TTL time.Duration
	// ReapAfter is when Consul itself removes a service that stayed critical;
	// Consul's own minimum is one minute.
	ReapAfter time.Duration
	// RequestTimeout bounds one call, so that a hung Consul costs one push.
	RequestTimeout time.Duration
	Logger         hclog.Logger
}

// DefaultRegistrarConfig has the reasons beside the numbers.
func DefaultRegistrarConfig() RegistrarConfig {
	return RegistrarConfig{
		TTL:            5 * time.Second, // survives two lost pushes on a busy machine
		ReapAfter:      1 * time.Minute, // Consul's minimum
		RequestTimeout: 2 * time.Second, // a push is sub-millisecond on a healthy agent
		Logger:         hclog.NewNullLogger(),
	}
}

func (c RegistrarConfig) validate() error {
	var errs []error
	if c.Cohort == "" {
		errs = append(errs, errors.New("cohort must not be empty"))
	}
	if c.TTL < time.Second {
		errs = append(errs, fmt.Errorf("ttl is %s: must be at least 1s", c.TTL))
	}
	if c.ReapAfter < time.Minute {
		errs = append(errs, fmt.Errorf("reap-after is %s: must be at least 1m (Consul's minimum)", c.ReapAfter))
	}
	if c.RequestTimeout <= 0 {
		errs = append(errs, fmt.Errorf("request timeout is %s: must be more than 0", c.RequestTimeout))
	}
	if c.Logger == nil {
		errs = append(errs, errors.New("logger must be set"))
	}
	return errors.Join(errs...)
}

// Status is what a Registrar last knew.
type Status struct {
	// Registered is true from the first successful registration until
	// Deregister, also while Consul is out of reach.
	Registered bool
	// LastError is the newest failed call's error, empty after a success.
	LastError string
	// Failures counts failed calls since the start.
	Failures uint64
}

// Registrar keeps one engine's service and TTL check in step with Consul. It
// is safe for concurrent use.
type Registrar struct {
	cfg       RegistrarConfig
	client    *api.Client
	transport *http.Transport

	mu     sync.Mutex
	status Status
}

// NewRegistrar validates cfg; it talks to nobody.
func NewRegistrar(cfg RegistrarConfig) (*Registrar, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("consul registrar: %w", err)
	}
	client, transport, err := newClient(cfg.Address)
	if err != nil {
		return nil, err
	}
	return &Registrar{cfg: cfg, client: client, transport: transport}, nil
}

// Close drops idle connections.
func (r *Registrar) Close() { r.transport.CloseIdleConnections() }

// Status returns what the registrar last knew.
func (r *Registrar) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

// Register makes one attempt to register e with a passing check. The error
// wraps ErrRefused where Consul answered and said no.
func (r *Registrar) Register(ctx context.Context, e replica.Engine) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.RequestTimeout)
	defer cancel()
	opts := api.ServiceRegisterOpts{ReplaceExistingChecks: true}.WithContext(ctx)
	err := r.client.Agent().ServiceRegisterOpts(registration(e, r.cfg.Cohort, r.cfg), opts)
	if err != nil && refused(err) {
		err = fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return r.note(err == nil, "register "+e.ID(), err)
}

// Push tells Consul the check's status (api.HealthPassing, HealthWarning or
// HealthCritical) and why. It registers e again where Consul has lost it.
func (r *Registrar) Push(ctx context.Context, e replica.Engine, status, output string) error {
	callCtx, cancel := context.WithTimeout(ctx, r.cfg.RequestTimeout)
	q := (&api.QueryOptions{}).WithContext(callCtx)
	err := r.client.Agent().UpdateTTLOpts(checkID(e), output, status, q)
	cancel()
	if err != nil && unknownCheck(err) {
		r.cfg.Logger.Warn("Consul has lost this engine: registering it again", "service", e.ID())
		if err := r.Register(ctx, e); err != nil {
			return err
		}
		if status == api.HealthPassing {
			return nil
		}
		callCtx, cancel := context.WithTimeout(ctx, r.cfg.RequestTimeout)
		defer cancel()
		err = r.client.Agent().UpdateTTLOpts(checkID(e), output, status, (&api.QueryOptions{}).WithContext(callCtx))
	}
	return r.note(true, "push check of "+e.ID(), err)
}

// Deregister removes e. A service that Consul does not know counts as removed.
// The error wraps ErrRefused where Consul answered and said no.
func (r *Registrar) Deregister(ctx context.Context, e replica.Engine) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.RequestTimeout)
	defer cancel()
	err := r.client.Agent().ServiceDeregisterOpts(e.ID(), (&api.QueryOptions{}).WithContext(ctx))
	switch {
	case isNotFound(err):
		err = nil
	case err != nil && refused(err):
		err = fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return r.note(err != nil, "deregister "+e.ID(), err)
}

func isNotFound(err error) bool {
	var status api.StatusError
	return errors.As(err, &status) && status.Code == http.StatusNotFound
}

// note keeps the status; registered is its new value where err is nil.
func (r *Registrar) note(registered bool, doing string, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.status.Registered = registered
		r.status.LastError = ""
		return nil
	}
	err = fmt.Errorf("%s: %w", doing, err)
	r.status.Failures++
	r.status.LastError = err.Error()
	return err
}
