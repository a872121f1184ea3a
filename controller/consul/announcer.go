package consul

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-hclog"
)

// AnnouncerConfig says how a daemon of remuda appears in Consul's catalog.
type AnnouncerConfig struct {
	Address Address
	// Service is the service's name, as "remuda-gateway". Required.
	Service string
	// Listen is the TCP address that the daemon listens on. One without a
	// particular host ("0.0.0.0:80", "[::]:80") is announced with the Consul
	// agent's own address. Required.
	Listen net.Addr
	// Meta is the service's metadata.
	Meta map[string]string
	// CheckPath is what Consul asks for over HTTP at Listen, as "/ready"; any
	// 2xx answer passes. Empty: Consul only connects, as it must where the daemon
	// asks its clients for certificates.
	CheckPath string
	// TLS has Consul ask over HTTPS. It does not verify the certificate, which is
	// for the name by which others know the daemon.
	TLS bool
	// CheckInterval is how often Consul asks.
	CheckInterval time.Duration
	// Repair is how often the announcer looks whether Consul still knows the
	// service, which it does not after it lost its data.
	Repair time.Duration
	// ReapAfter is when Consul removes a service that stayed critical;
	// Consul's own minimum is one minute.
	ReapAfter time.Duration
	// RequestTimeout bounds one call.
	RequestTimeout time.Duration
	Logger         hclog.Logger
}

// DefaultAnnouncerConfig has the reasons beside the numbers.
func DefaultAnnouncerConfig() AnnouncerConfig {
	return AnnouncerConfig{
		CheckInterval:  2 * time.Second,  // a dead daemon is critical after it
		Repair:         10 * time.Second, // one cheap look at the local agent
		ReapAfter:      1 * time.Minute,  // Consul's minimum
		RequestTimeout: 2 * time.Second,
		Logger:         hclog.NewNullLogger(),
	}
}

func (c AnnouncerConfig) validate() error {
	var errs []error
	if c.Service == "" {
		errs = append(errs, errors.New("service must not be empty"))
	}
	if _, ok := c.Listen.(*net.TCPAddr); !ok {
		errs = append(errs, fmt.Errorf("listen is %v: must be a TCP address", c.Listen))
	}
	if c.CheckPath != "" && c.CheckPath[0] != '/' {
		errs = append(errs, fmt.Errorf("check path is %q: must begin with /", c.CheckPath))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
		least time.Duration
	}{
		{"check interval", c.CheckInterval, time.Second},
		{"repair", c.Repair, time.Millisecond},
		{"reap-after", c.ReapAfter, time.Minute},
		{"request timeout", c.RequestTimeout, time.Millisecond},
	} {
		if d.value < d.least {
			errs = append(errs, fmt.Errorf("%s is %s: must be at least %s", d.name, d.value, d.least))
		}
	}
	if c.Logger == nil {
		errs = append(errs, errors.New("logger must be set"))
	}
	return errors.Join(errs...)
}

// Announcer keeps one daemon in Consul's catalog. Consul asks the daemon itself
// whether it is well, so a daemon that hangs turns critical.
type Announcer struct {
	cfg       AnnouncerConfig
	client    *api.Client
	transport *http.Transport
	service   *api.AgentServiceRegistration
}

// NewAnnouncer validates cfg; it talks to nobody.
func NewAnnouncer(cfg AnnouncerConfig) (*Announcer, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("consul announcer: %w", err)
	}
	client, transport, err := newClient(cfg.Address)
	if err != nil {
		return nil, err
	}
	return &Announcer{cfg: cfg, client: client, transport: transport, service: announcement(cfg)}, nil
}

func announcement(cfg AnnouncerConfig) *api.AgentServiceRegistration {
	tcp := cfg.Listen.(*net.TCPAddr)
	host, checkHost := tcp.IP.String(), tcp.IP.String()
	if len(tcp.IP) == 0 || tcp.IP.IsUnspecified() {
		// Empty means the agent's address, at which others reach this machine.
		host, checkHost = "", "127.0.0.1"
	}
	port := strconv.Itoa(tcp.Port)
	at := net.JoinHostPort(checkHost, port)
	id := cfg.Service + "-" + at
	check := &api.AgentServiceCheck{
		CheckID: "service:" + id, Interval: cfg.CheckInterval.String(), Timeout: cfg.RequestTimeout.String(),
		DeregisterCriticalServiceAfter: cfg.ReapAfter.String(),
	}
	switch {
	case cfg.CheckPath == "":
		check.Name, check.TCP = "connect", at
	case cfg.TLS:
		ask := url.URL{Scheme: "https", Host: at, Path: cfg.CheckPath}
		check.Name, check.HTTP, check.TLSSkipVerify = "GET "+cfg.CheckPath, ask.String(), true
	default:
		ask := url.URL{Scheme: "http", Host: at, Path: cfg.CheckPath}
		check.Name, check.HTTP = "GET "+cfg.CheckPath, ask.String()
	}
	return &api.AgentServiceRegistration{Kind: api.ServiceKindTypical, ID: id, Name: cfg.Service, Address: host, Port: tcp.Port, Meta: cfg.Meta, Check: check}
}

// Run registers the service, repairs the registration while ctx lasts, and
// removes it at the end. It never gives up: Consul's absence is logged once and
// costs nothing else.
func (a *Announcer) Run(ctx context.Context) {
	defer a.transport.CloseIdleConnections()
	log := a.cfg.Logger.With("service", a.service.ID)
	failing, registered := false, false
	for wait := minRetry; ; {
		now, err := a.ensure(ctx, !registered)
		switch {
		case ctx.Err() != nil:
		case err != nil && !failing:
			failing = true
			log.Warn("cannot register in Consul, retrying", "error", err)
		case err == nil && (now || failing):
			failing = false
			log.Info("registered in Consul", "again", registered)
			registered = true
		}
		pause := a.cfg.Repair
		if err != nil {
			pause, wait = wait, min(2*wait, maxRetry)
		} else {
			wait = minRetry
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
			continue
		case <-ctx.Done():
			timer.Stop()
		}
		break
	}
	if err := a.remove(ctx); err != nil {
		log.Warn("cannot remove the registration from Consul: Consul removes it later", "error", err, "after", a.cfg.ReapAfter)
	}
}

// ensure registers the service where Consul does not know it, and tells
// whether it had to. The first time it does so in any case: what Consul knows may be
// of an earlier life with another config.
func (a *Announcer) ensure(ctx context.Context, first bool) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.RequestTimeout)
	defer cancel()
	if !first {
		_, _, err := a.client.Agent().Service(a.service.ID, (&api.QueryOptions{}).WithContext(ctx))
		if err == nil || !isNotFound(err) {
			return false, err
		}
	}
	return true, a.client.Agent().ServiceRegisterOpts(a.service, api.ServiceRegisterOpts{ReplaceExistingChecks: true}.WithContext(ctx))
}

func (a *Announcer) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.cfg.RequestTimeout)
	defer cancel()
	err := a.client.Agent().ServiceDeregisterOpts(a.service.ID, (&api.QueryOptions{}).WithContext(ctx))
	if isNotFound(err) {
		return nil
	}
	return err
}
