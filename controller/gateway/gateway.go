// Package gateway is remuda's OpenAI-compatible front door: it finds the
// engines of a model through Consul and passes requests to them.
//
// What it promises:
//   - The byte path is client, gateway, engine. With Consul down, traffic flows
//     to the engines that were known.
//   - An engine that Consul no longer lists as passing gets no new request from
//     the moment the watch reports it; see the package balance for the exact
//     rules, fencing tokens and the grace after a Consul outage.
//   - A request at an engine that Consul no longer lists as passing goes on, unless the
//     engine's host is silent. See the package upstream.
//   - A stream is passed on line by line as it arrives, byte for byte.
//   - No failure is silent. Before the first byte of an answer it is an error
//     in OpenAI's shape with a fitting status. After it, a stream gets an event
//     with the error and the connection is cut, any other answer is cut.
//   - A client that leaves frees its engine at once.
//   - With a controller, only engines that it has placed get requests, at addresses that
//     Nomad gave to them: a registration in Consul alone proves nothing.
//   - With a controller, a replica that it drains gets no new request while another
//     engine can serve, and a model that it knows is never a 404. While the controller
//     is away, its last word stays in force. What clients want and no replica serves is
//     told to it at once.
//   - Every wait and every buffer is bounded; see Timeouts and Limits. There is
//     no total timeout.
//
// Requests are held in memory whole, so that they can be sent again. Which
// engine gets a request, and when, is decided by a Dispatcher.
package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"remuda/controller/api"
	"remuda/controller/gateway/accesslog"
	"remuda/controller/gateway/balance"
	"remuda/controller/gateway/compose"
	"remuda/controller/gateway/dispatch"
	"remuda/controller/gateway/queue"
	"remuda/controller/gateway/tracing"
	"remuda/controller/gateway/upstream"
	"remuda/internal/certificate"
	"remuda/internal/replica"
)

// abortGrace is how long cut-off streams have to send their error event. Tests make it longer.
var abortGrace = time.Second

// sweepEvery is how often what nobody asks for any more is forgotten.
const sweepEvery = time.Second

// maxIdleConns is how many idle connections are kept per engine.
const maxIdleConns = 4096

// Gateway serves clients. Its Run may be called once.
type Gateway struct {
	cfg        Config
	log        hclog.Logger
	dispatcher *dispatch.Dispatcher
	admission  *admission
	keyring    atomic.Pointer[keyring]
	live       live
	usage      usageBook
	transport  *upstream.Transport
	metrics    *metrics
	scrape     http.Handler
	bodies     bodyStore
	unasked    unasked
	guesses    *guesses
	responses  responses
	visits     visits
	composer   *compose.Composer
	access     *accesslog.Logger
	tracer     *tracing.Tracer
	// certificates are those of the clients' port, nil without TLS.
	certificates *certificate.Pair
	// servers are the controller's, none where there is no controller.
	servers  []*api.Client
	follower *follower
	draining atomic.Bool
	began    time.Time
	// drain is closed when the controller orders to.
	drain     chan struct{}
	drainOnce sync.Once
	// settings are those of the controller's models.
	settings atomic.Pointer[map[string]settings]
	// opened is closed once the access log is open.
	opened   chan struct{}
	handlers sync.WaitGroup
}

// New validates cfg. It opens nothing and starts nothing.
func New(cfg Config) (*Gateway, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	table, err := balance.New(balance.Config{
		Grace: cfg.Routing.Grace, Remember: cfg.Routing.Remember,
		Breaker:   balance.BreakerConfig{Base: cfg.Routing.Suspect, Max: cfg.Routing.SuspectMax},
		Imbalance: balance.Imbalance{Factor: cfg.Routing.ImbalanceFactor, Slack: max(cfg.Routing.ImbalanceSlack, 1)},
	})
	if err != nil {
		return nil, err
	}
	keys, err := queue.NewKeys(cfg.Keys.Default, cfg.keyLimits())
	if err != nil {
		return nil, err
	}
	g := &Gateway{cfg: cfg, log: cfg.Logger, dispatcher: dispatch.New(dispatch.Config{
		Length: int(cfg.Queue.Length), Aging: cfg.Queue.Aging, Table: table, Keys: keys, Reports: len(cfg.Controller.Addresses) > 0,
		Budget: queue.BudgetConfig{Ratio: cfg.Retries.BudgetRatio, Floor: cfg.Retries.BudgetFloor, Window: cfg.Retries.BudgetWindow},
	}), began: time.Now(), drain: make(chan struct{}), opened: make(chan struct{})}
	g.keyring.Store(newKeyring(&cfg))
	if g.servers, err = newControllers(cfg.Controller); err != nil {
		return nil, err
	}
	g.guesses = newGuesses()
	g.unasked.conns = map[net.Conn]struct{}{}
	g.bodies.setLimits(cfg.Limits)
	engineTLS, err := cfg.EngineTLS.config()
	if err != nil {
		return nil, fmt.Errorf("invalid gateway config: %w", err)
	}
	g.transport = upstream.New(upstream.Config{Connect: cfg.Timeouts.Connect, Idle: cfg.Timeouts.EngineIdle, MaxIdle: maxIdleConns, TLS: engineTLS})
	g.admission = &admission{log: g.log, controlled: len(g.servers) > 0, secured: engineTLS != nil, use: g.use}
	g.metrics = newMetrics(g.dispatcher, &g.bodies)
	g.metrics.refusals(g.admission)
	if g.composer, err = compose.New(compose.Config{
		Next: http.HandlerFunc(g.step), Logger: g.log.Named("pipeline"), CommentAfter: cfg.Queue.CommentAfter, CommentEvery: cfg.Queue.CommentEvery,
		RetryAfter: cfg.RetryAfter,
	}); err != nil {
		return nil, err
	}
	if len(g.servers) > 0 {
		g.follower = &follower{servers: g.servers, log: g.log.Named("controller"), apply: g.direct, away: g.dispatcher.Away, first: make(chan struct{})}
		g.metrics.follow(g.follower)
	}
	if cfg.TLS.on() {
		g.certificates = certificate.New(cfg.TLS.Cert, cfg.TLS.Key, g.log.Named("tls"))
		g.metrics.certify(g.certificates)
	}
	g.scrape = g.metrics.handler(g.log)
	return g, nil
}

// Run listens and serves until ctx ends. Then it stops accepting, lets running
// requests finish for Timeouts.Drain, cuts off the rest and returns nil once
// everything it started has ended.
func (g *Gateway) Run(ctx context.Context) error {
	listener, operators, err := g.listen(ctx)
	if err != nil {
		return err
	}
	if err := g.open(); err != nil {
		_ = listener.Close() // nobody has seen it
		_ = operators.Close()
		return err
	}
	base, cutOff := context.WithCancelCause(context.Background())
	defer cutOff(nil)
	server := g.clientServer(base)
	g.warnOpen(listener.Addr(), operators.Addr())
	if g.cfg.OnListen != nil {
		g.cfg.OnListen(listener.Addr(), operators.Addr())
	}

	watchCtx, stopWatch := context.WithCancel(context.WithoutCancel(ctx))
	watched := make(chan error, 1)
	go func() { watched <- g.cfg.Watcher.Watch(watchCtx, g.admission.list, g.dispatcher.Lost) }()
	var controlled sync.WaitGroup
	if g.follower != nil {
		r := &reporter{servers: g.servers, log: g.follower.log, dispatcher: g.dispatcher, gateway: processName(listener.Addr()), address: cmp.Or(g.cfg.Advertise, addressFor(listener.Addr(), g.cfg.TLS.on(), g.cfg.Controller.Addresses[0])), since: time.Now(), usage: &g.usage,
			draining: g.draining.Load, obey: g.obey}
		controlled.Go(func() { g.follower.run(watchCtx) })
		controlled.Go(func() { r.run(watchCtx) })
	}
	if g.certificates != nil {
		controlled.Go(func() { g.certificates.Watch(watchCtx) })
	}
	stopOperators := g.serveOperators(operators)
	served := make(chan error, 1)
	go func() { served <- g.serveClients(server, listener) }()

	var failure error
	watching, serving := true, true
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	for running := true; running; {
		running = false
		select {
		case <-ctx.Done():
		case <-g.drain:
			g.log.Info("draining by order of the controller")
		case <-sweep.C:
			running = true
			g.metrics.forget(g.dispatcher.Expire())
			g.guesses.report(g.log)
		case err := <-watched:
			watching = false
			if err == nil {
				err = errors.New("the watch ended without an error")
			}
			failure = fmt.Errorf("watch the engines: %w", err)
		case err := <-served:
			serving = false
			failure = fmt.Errorf("serve clients: %w", err)
		}
	}

	g.draining.Store(true)
	if failure == nil && g.cfg.Timeouts.LameDuck > 0 {
		lame := time.NewTimer(g.cfg.Timeouts.LameDuck)
		select {
		case <-lame.C:
		case err := <-served:
			serving = false
			failure = fmt.Errorf("serve clients: %w", err)
		}
		lame.Stop()
	}
	if !g.shutdown(server, g.cfg.Timeouts.Drain) {
		g.log.Warn("ending requests that did not finish within the drain timeout", "drain", g.cfg.Timeouts.Drain)
		cutOff(errStopping)
		g.shutdown(server, abortGrace)
		_ = server.Close() // the listener is closed already
	}
	g.handlers.Wait()
	if serving {
		<-served
	}
	stopWatch()
	if watching {
		<-watched
	}
	controlled.Wait()
	stopOperators() // a drain can be watched to its end
	g.dispatcher.Close()
	failure = errors.Join(failure, g.close())
	for _, s := range g.servers {
		s.Close()
	}
	g.transport.CloseIdle()
	return failure
}

// open opens what the request path writes to.
func (g *Gateway) open() error {
	var err error
	if g.access, err = accesslog.New(accesslog.Config{Path: g.cfg.AccessLog.Path, Logger: g.log.Named("access")}); err != nil {
		return fmt.Errorf("open the access log: %w", err)
	}
	if g.tracer, err = tracing.New(tracing.Config{
		Endpoint: g.cfg.Tracing.Endpoint, Ratio: g.cfg.Tracing.Ratio, Service: "remuda-gateway", Logger: g.log.Named("tracing"),
	}); err != nil {
		return errors.Join(fmt.Errorf("start tracing: %w", err), g.close())
	}
	g.metrics.observe(g.access, g.tracer)
	close(g.opened)
	return nil
}

// close writes out what is left.
func (g *Gateway) close() error {
	lines, cancel := context.WithTimeout(context.Background(), abortGrace)
	defer cancel()
	failure := g.access.Close(lines)
	// Who takes no spans uses up a time of its own.
	spans, cancel := context.WithTimeout(context.Background(), abortGrace)
	defer cancel()
	if err := g.tracer.Close(spans); err != nil { // spans that nobody takes are no failure
		g.log.Warn("could not export all tracing spans before the stop", "error", err)
	}
	return failure
}

// Reopen opens the access log's file anew, for a log rotation, and reads the certificate and its
// key again. Of what cannot be read the last one stays in use.
func (g *Gateway) Reopen() error {
	select {
	case <-g.opened:
	default:
		return nil // Run opens everything
	}
	failure := g.access.Reopen()
	if failure != nil {
		failure = fmt.Errorf("reopen the access log: %w", failure)
	}
	if g.certificates != nil {
		failure = errors.Join(failure, g.certificates.Reload())
	}
	return failure
}

// direct takes a state of the controller into force.
func (g *Gateway) direct(s api.GatewayState, index uint64) {
	models, lengths, goals := make(map[string]settings, len(s.Models)), map[string]int{}, map[string]time.Duration{}
	for _, m := range s.Models {
		models[m.Name] = settings{continuation: m.Continuation, wait: time.Duration(m.QueueWait), firstByte: time.Duration(m.FirstByte), passAuthorization: m.PassAuthorization, engines: m.Engines}
		if m.QueueLength > 0 {
			lengths[m.Name] = min(m.QueueLength, dispatch.MaxQueue)
		}
		if m.TTFTP95 > 0 {
			goals[m.Name] = time.Duration(m.TTFTP95)
		}
	}
	g.settings.Store(&models)
	g.dispatcher.SetModels(lengths, goals)
	g.usage.follow(s.Keys)
	ring, def, named := g.cfg.keysOf(s.Keys)
	if err := g.dispatcher.SetKeys(def, named); err != nil { // the controller has checked them
		g.log.Error("cannot use the controller's keys: the last ones stay in force", "error", err)
	} else {
		g.keyring.Store(ring)
	}
	g.metrics.forget(balance.Changes{Models: g.composer.Set(s.Pipelines)}) // clients cannot tell the two apart
	g.metrics.forget(g.dispatcher.Direct(orders(s, index)))
	g.admission.place(s)
}

// settings are what a model file says for gateways; 0 is the gateway's own setting.
type settings struct {
	// continuation: a stream that an engine broke off may go on at another one.
	continuation    bool
	wait, firstByte time.Duration
	// passAuthorization: engines get the Authorization header of clients.
	passAuthorization bool
	// engines are the kinds of its engines, empty where nobody has said.
	engines []string
}

// of returns the settings of a model, with the gateway's own for those that it has not.
func (g *Gateway) of(model string) settings {
	var out settings
	if m := g.settings.Load(); m != nil {
		out = (*m)[model]
	}
	if out.wait == 0 {
		out.wait = g.cfg.Queue.Wait
	}
	if out.firstByte == 0 {
		out.firstByte = g.cfg.Timeouts.FirstByte
	}
	// Without a controller nothing can say that an engine wants it.
	out.passAuthorization = out.passAuthorization || len(g.servers) == 0
	return out
}

// obey carries the controller's orders out.
func (g *Gateway) obey(o api.GatewayOrders) {
	for _, id := range o.Kill {
		if g.live.kill(id) {
			g.log.Warn("killed a request by order of the controller", "id", id)
		}
	}
	if o.Drain {
		g.drainOnce.Do(func() { close(g.drain) })
	}
}

// shutdown lets requests finish for d and tells whether all did.
func (g *Gateway) shutdown(server *http.Server, d time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	unasked := time.AfterFunc(stopGrace, g.unasked.close)
	defer unasked.Stop()
	return server.Shutdown(ctx) == nil
}

// use takes a list of engines that may be used.
func (g *Gateway) use(engines []replica.Engine, afterOutage bool) {
	first := !g.dispatcher.Ready()
	ch := g.dispatcher.Update(engines, afterOutage)
	g.metrics.forget(ch)
	passing := make(map[string]bool, len(engines))
	for _, e := range engines {
		if e.Passing {
			passing[e.HostPort()] = true
		}
	}
	g.transport.SetPassing(passing)
	if first {
		g.log.Info("the first list of engines came into force", "engines", len(engines), "passing", len(passing))
	} else {
		g.log.Debug("engines changed", "engines", len(engines), "passing", len(passing), "after_outage", afterOutage)
	}
	if len(ch.Kept) > 0 {
		g.log.Warn("keeping engines that Consul does not list after its outage", "engines", ch.Kept, "grace", g.cfg.Routing.Grace)
	}
}
