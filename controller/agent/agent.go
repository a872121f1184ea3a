// Package agent is the controller's daemon, `remuda agent`: it opens the Raft server,
// the way to Nomad and to Consul, the reconciler and the API, and keeps them together.
//
// It guarantees: nothing is opened before the whole config was found good; an agent
// whose Nomad or Consul is out of reach serves its API all the same, and says what it
// lacks; one that is told to stop hands leadership over first, so that the cluster is
// not without a leader for an election's time; and Run returns only when everything
// that it started has ended.
package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	nomadapi "github.com/hashicorp/nomad/api"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"remuda/controller/consul"
	"remuda/controller/gatewayreport"
	"remuda/controller/nomad"
	"remuda/controller/raft"
	"remuda/controller/reconcile"
	"remuda/controller/server"
	"remuda/controller/shimclient"
	"remuda/controller/state"
	"remuda/controller/usage"
)

// How long a stopping agent tries to part from the cluster well. Nomad's default
// kill_timeout is 5 s: the rest is for what clients are waiting for.
const (
	handOverTimeout = 2 * time.Second
	// Leaving is a commit of the others, and worth more patience: the operator who
	// sets leave_on_terminate sets kill_timeout as well.
	leaveTimeout = 10 * time.Second
)

// Agent is one server of the controller. Its Run may be called once.
type Agent struct {
	cfg Config
	log hclog.Logger
}

// New validates cfg, and names everything that is wrong with it. It opens nothing.
func New(cfg Config) (*Agent, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	return &Agent{cfg: cfg, log: cfg.Logger}, nil
}

// parts are what a running agent has open.
type parts struct {
	listener   net.Listener
	node       *raft.Node
	nomad      *nomad.Client
	pools      []*nomad.Client
	shims      *shimclient.Client
	reconciler *reconcile.Reconciler
	usage      *usage.Recorder
	server     *server.Server
	announcer  *consul.Announcer
}

// close gives back what was opened.
func (p *parts) close() error {
	var errs []error
	if p.listener != nil {
		// The server has closed it if it ever ran.
		if err := p.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if p.node != nil {
		errs = append(errs, p.node.Close())
	}
	if p.nomad != nil {
		p.nomad.Close()
	}
	for _, pool := range p.pools {
		pool.Close()
	}
	if p.shims != nil {
		p.shims.Close()
	}
	return errors.Join(errs...)
}

// Run is the agent's life. It ends when ctx does, and is then nil, or when the server
// cannot go on.
func (a *Agent) Run(ctx context.Context) (err error) {
	p := &parts{}
	defer func() { err = errors.Join(err, p.close()) }()
	if err := a.open(ctx, p); err != nil {
		return err
	}
	url := a.cfg.apiURL(p.listener.Addr())
	a.log.Info("agent started", "api", url, "raft", p.node.Address(), "id", p.node.ID(), "acl", a.cfg.ACL.Enabled, "tls_http", a.cfg.TLS.forHTTP(), "tls_raft", a.cfg.TLS.forRaft(), "secret_raft", a.cfg.Raft.Secret != "" || a.cfg.Raft.SecretFile != "")
	a.warn(p.listener.Addr())
	if a.cfg.OnListen != nil {
		a.cfg.OnListen(url)
	}

	// Each part has a context of its own, as they end one after the other.
	life := context.WithoutCancel(ctx)
	var wg sync.WaitGroup
	start := func(run func(context.Context)) (stop func()) {
		ctx, cancel := context.WithCancel(life)
		done := make(chan struct{})
		wg.Go(func() { defer close(done); run(ctx) })
		return func() { cancel(); <-done }
	}
	served := make(chan error, 1)
	stopServing := start(func(ctx context.Context) { served <- p.server.Run(ctx, p.listener) })
	stopReconciling := start(p.reconciler.Run)
	stopCounting := start(p.usage.Run)
	unannounce := func() {}
	if p.announcer != nil {
		unannounce = start(p.announcer.Run)
	}

	var failure error
	select {
	case <-ctx.Done():
		a.log.Info("agent stopping")
	case <-p.node.Failed():
		failure = fmt.Errorf("this server has failed: %w", p.node.Err())
	case err := <-served:
		failure = fmt.Errorf("serve the API: %w", errors.Join(err, errors.New("the listener ended unexpectedly")))
		served <- nil
	}
	unannounce()
	if failure == nil {
		a.part(life, p.node)
	}
	stopServing()
	stopReconciling()
	stopCounting()
	wg.Wait()
	if err := <-served; err != nil {
		failure = errors.Join(failure, fmt.Errorf("serve the API: %w", err))
	}
	return failure
}

// part leaves the cluster if the config says so. Otherwise it transfers leadership, so
// that the others do not wait for an election.
func (a *Agent) part(ctx context.Context, node *raft.Node) {
	if a.cfg.LeaveOnTerminate {
		ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
		defer cancel()
		if err := node.Leave(ctx); err != nil {
			a.log.Warn("cannot leave the cluster: remove this server with \"remuda raft remove-peer\" if it does not come back", "id", node.ID(), "error", err)
		}
		return
	}
	members, err := node.Members()
	voters := slices.DeleteFunc(members, func(m raft.Member) bool { return !m.Voter })
	if now, _ := node.Leadership(); err != nil || !now.Leader || len(voters) < 2 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, handOverTimeout)
	defer cancel()
	if err := node.TransferLeadership(ctx, ""); err != nil {
		a.log.Warn("cannot transfer leadership: the other servers elect a leader after the election timeout", "error", err)
	}
}

// open opens everything, in the order in which the parts need each other.
func (a *Agent) open(ctx context.Context, p *parts) error {
	secure, err := a.cfg.TLS.load()
	if err != nil {
		return err
	}
	if p.nomad, err = a.openNomad("", a.cfg.Nomad); err != nil {
		return err
	}
	pools := map[string]reconcile.Nomad{}
	for _, pool := range a.cfg.Pools {
		client, err := a.openNomad(pool.Name, pool.Nomad)
		if err != nil {
			return fmt.Errorf("pool %q: %w", pool.Name, err)
		}
		p.pools = append(p.pools, client)
		pools[pool.Name] = client
	}
	p.shims = shimclient.New(shimclient.Network())
	watcher, err := a.engines()
	if err != nil {
		return err
	}
	if p.listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", a.cfg.HTTP.Bind); err != nil {
		return fmt.Errorf("http.bind: %w", err)
	}
	address := p.listener.Addr()
	if secure.server != nil {
		p.listener = tls.NewListener(p.listener, secure.server)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	registry.MustRegister(serverMetrics(a.cfg.DataDir, secure.expires)...)
	if p.node, err = a.openRaft(secure.raft, address, registry); err != nil {
		return err
	}
	loads := gatewayreport.New(a.cfg.Reconcile.GatewayTTL, time.Now)
	rc := reconcile.DefaultConfig()
	rc.Raft, rc.Nomad, rc.Pools, rc.Shims, rc.Consul, rc.Loads = p.node, p.nomad, pools, p.shims, watcher, loads
	rc.Planner, rc.Logger, rc.Registerer = a.cfg.planner(), a.log.Named("reconcile"), registry
	if p.reconciler, err = reconcile.New(rc); err != nil {
		return err
	}
	uc := usage.DefaultConfig()
	uc.Raft, uc.Logger, uc.Registerer = p.node, a.log.Named("usage"), registry
	if p.usage, err = usage.New(uc); err != nil {
		return err
	}
	sc := server.DefaultConfig()
	sc.Raft, sc.Nomad, sc.Loads, sc.ACL, sc.Peers = p.node, p.nomad, loads, a.cfg.ACL.Enabled, secure.client
	sc.GatewayCAs = secure.gatewayCAs
	sc.CheckScaling = a.cfg.CheckScaling
	sc.Reconciler, sc.Usage = reconciler{p.reconciler, a.cfg}, p.usage
	sc.Drain, sc.Logger, sc.Registerer, sc.Gatherer = a.cfg.HTTP.Drain, a.log.Named("http"), registry, registry
	if p.server, err = server.New(sc); err != nil {
		return err
	}
	p.announcer, err = a.announce(address)
	return err
}

func (a *Agent) openRaft(secure *raft.TLS, address net.Addr, registry prometheus.Registerer) (*raft.Node, error) {
	store, err := state.New()
	if err != nil {
		return nil, err
	}
	secret, err := a.cfg.Raft.secret()
	if err != nil {
		return nil, fmt.Errorf("the secret of the Raft port %w", err)
	}
	rc := a.cfg.raft(secret, secure)
	rc.API = a.cfg.apiURL(address)
	rc.Store, rc.Logger, rc.Registerer = store, a.log, registry
	return raft.Open(rc)
}

// openNomad returns the client of a pool's Nomad; the controller's own has no name.
func (a *Agent) openNomad(pool string, c Nomad) (*nomad.Client, error) {
	nc := nomad.DefaultConfig()
	nc.Address, nc.Token, nc.Namespace, nc.Region, nc.NodePool, nc.Isolated = c.Address, c.Token, c.Namespace, c.Region, c.NodePool, pool != ""
	if c.CAFile != "" || c.CertFile != "" || c.ServerName != "" {
		nc.TLS = &nomadapi.TLSConfig{CACert: c.CAFile, ClientCert: c.CertFile, ClientKey: c.KeyFile, TLSServerName: c.ServerName}
	}
	nc.Rate, nc.Burst, nc.Logger = float64(c.Rate), c.Burst, a.log.Named("nomad")
	if pool != "" {
		nc.Logger = nc.Logger.With("pool", pool)
	}
	return nomad.New(nc)
}

// engines is what tells the reconciler which engines serve.
func (a *Agent) engines() (*consul.Watcher, error) {
	wc := consul.DefaultWatcherConfig()
	wc.Address, wc.Logger = consul.Address{Addr: a.cfg.Consul.Address, Token: a.cfg.Consul.Token}, a.log.Named("consul")
	return consul.NewWatcher(wc)
}

// announce returns what keeps the agent in Consul's catalog, nil where that is not
// wanted.
func (a *Agent) announce(address net.Addr) (*consul.Announcer, error) {
	if a.cfg.Consul.Service == "" {
		return nil, nil //nolint:nilnil // not to appear there is a choice
	}
	ac := consul.DefaultAnnouncerConfig()
	ac.Address = consul.Address{Addr: a.cfg.Consul.Address, Token: a.cfg.Consul.Token}
	ac.Service, ac.Listen, ac.TLS = a.cfg.Consul.Service, address, a.cfg.TLS.forHTTP()
	// A server without a leader is critical: who looks for a controller gets another.
	ac.CheckPath = "/ready"
	if a.cfg.TLS.VerifyClient {
		ac.CheckPath = "" // Consul has no certificate to show.
	}
	ac.Logger = a.log.Named("consul")
	return consul.NewAnnouncer(ac)
}

// warn says what is open to strangers.
func (a *Agent) warn(address net.Addr) {
	tcp, ok := address.(*net.TCPAddr)
	if !ok || tcp.IP.IsLoopback() {
		return
	}
	if !a.cfg.ACL.Enabled {
		a.log.Warn("ACLs are disabled (acl.enabled = false): the API is open to every client that can reach it", "address", address)
	}
	if a.cfg.ACL.Enabled && !a.cfg.TLS.forHTTP() {
		a.log.Warn("the API has no TLS: ACL tokens are sent unencrypted", "address", address)
	}
}
