// Package gateway is remuda's OpenAI-compatible front door: it finds the
// engines of a model through Consul and passes requests to them.
//
// What it promises:
//   - The byte path is client, gateway, engine. With Consul down, traffic flows
//     to the engines that were known.
//   - An engine that Consul no longer lists as passing gets no new request from
//     the moment the watch reports it; see the package balance for the exact
//     rules, fencing tokens and the grace after a Consul outage.
//   - A stream is passed on line by line as it arrives, byte for byte.
//   - No failure is silent. Before the first byte of an answer it is an error
//     in OpenAI's shape with a fitting status. After it, a stream gets an event
//     with the error and the connection is cut, any other answer is cut.
//   - A client that leaves frees its engine at once.
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
	"remuda/controller/gateway/balance"
	"remuda/internal/replica"
)

// errStopping is the cause of a request's context when the drain is over.
var errStopping = errors.New("the gateway is stopping")

// abortGrace is how long cut-off streams have to send their error event.
const abortGrace = time.Second

// sweepEvery is how often what nobody asks for any more is forgotten.
const sweepEvery = time.Second

// Gateway serves clients. Its Run may be called once.
type Gateway struct {
	cfg       Config
	log       hclog.Logger
	roster    *roster
	dispatch  Dispatcher
	transport *http.Transport
	metrics   *metrics
	scrape    http.Handler
	bodies    bodyStore
	// servers are the controller's, none where there is no controller.
	servers  []*api.Client
	follower *follower
	draining atomic.Bool
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
		Grace: cfg.Routing.Grace, Suspect: cfg.Routing.Suspect, Remember: cfg.Routing.Remember,
	})
	if err != nil {
		return nil, err
	}
	g := &Gateway{cfg: cfg, log: cfg.Logger, roster: &roster{table: table}}
	if g.servers, err = newControllers(cfg.Controller); err != nil {
		return nil, err
	}
	g.dispatch = cfg.Dispatcher
	if g.dispatch == nil {
		g.dispatch = g.roster
	}
	g.bodies.limit = cfg.Limits.Buffered
	g.transport = newTransport(cfg)
	g.metrics = newMetrics(g.roster, &g.bodies)
	if len(g.servers) > 0 {
		g.roster.changed = make(chan struct{}, 1)
		g.roster.urgent = make(chan struct{}, 1)
		g.follower = &follower{servers: g.servers, log: g.log.Named("controller"), apply: func(o balance.Orders) { g.metrics.forget(g.roster.direct(o)) }}
		g.metrics.follow(g.follower)
	}
	g.scrape = g.metrics.handler(g.log)
	return g, nil
}

// Run listens and serves until ctx ends. Then it stops accepting, lets running
// requests finish for Timeouts.Drain, cuts off the rest and returns nil once
// everything it started has ended.
func (g *Gateway) Run(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", g.cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen for clients: %w", err)
	}
	base, cutOff := context.WithCancelCause(context.Background())
	defer cutOff(nil)
	server := &http.Server{
		Handler:           http.HandlerFunc(g.serve),
		ReadHeaderTimeout: g.cfg.Timeouts.Header,
		IdleTimeout:       g.cfg.Timeouts.KeepAlive,
		MaxHeaderBytes:    int(g.cfg.Limits.Header),
		BaseContext:       func(net.Listener) context.Context { return base },
		ErrorLog:          g.log.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Warn}),
	}
	if g.cfg.OnListen != nil {
		g.cfg.OnListen(listener.Addr())
	}

	watchCtx, stopWatch := context.WithCancel(context.WithoutCancel(ctx))
	watched := make(chan error, 1)
	go func() { watched <- g.cfg.Watcher.Watch(watchCtx, g.update, g.roster.lost) }()
	var controlled sync.WaitGroup
	if g.follower != nil {
		r := &reporter{servers: g.servers, log: g.follower.log, roster: g.roster, gateway: processName(listener.Addr()), since: time.Now()}
		controlled.Go(func() { g.follower.run(watchCtx) })
		controlled.Go(func() { r.run(watchCtx) })
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(&clientListener{Listener: listener, timeout: g.cfg.Timeouts.Write}) }()

	var failure error
	watching, serving := true, true
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	for running := true; running; {
		running = false
		select {
		case <-ctx.Done():
		case <-sweep.C:
			running = true
			g.metrics.forget(g.roster.expire())
		case err := <-watched:
			watching = false
			if err == nil {
				err = errors.New("the watch ended by itself")
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
		g.log.Warn("cutting off requests that did not finish in time", "drain", g.cfg.Timeouts.Drain)
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
	for _, s := range g.servers {
		s.Close()
	}
	g.transport.CloseIdleConnections()
	return failure
}

// shutdown lets requests finish for d and tells whether all did.
func (g *Gateway) shutdown(server *http.Server, d time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return server.Shutdown(ctx) == nil
}

// update takes a list of engines from the watcher.
func (g *Gateway) update(engines []replica.Engine, afterOutage bool) {
	first := !g.roster.ready()
	ch := g.roster.update(engines, afterOutage)
	g.metrics.forget(ch)
	passing := 0
	for _, e := range engines {
		if e.Passing {
			passing++
		}
	}
	if first {
		g.log.Info("first list of engines", "engines", len(engines), "passing", passing)
	} else {
		g.log.Debug("engines changed", "engines", len(engines), "passing", passing, "after_outage", afterOutage)
	}
	if len(ch.Kept) > 0 {
		g.log.Warn("keeping engines that Consul does not vouch for after its outage", "engines", ch.Kept, "grace", g.cfg.Routing.Grace)
	}
}

// clientListener hands out connections whose writes cannot be stuck for ever.
type clientListener struct {
	net.Listener
	timeout time.Duration
}

// Accept waits for the next client.
func (l *clientListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok { // Run listens on TCP only
		return c, nil
	}
	return &clientConn{TCPConn: tcp, timeout: l.timeout}, nil
}

// clientConn moves its write deadline along with its writes.
type clientConn struct {
	*net.TCPConn
	timeout time.Duration
	armed   atomic.Int64 // when the deadline was last set, in ns since clockStart
}

// clockStart lets a time of the monotonic clock fit into an int64.
var clockStart = time.Now()

// Write writes with a deadline of timeout, or up to a sixteenth less: setting
// it for each token of a stream would cost more than it is worth.
func (c *clientConn) Write(p []byte) (int, error) {
	now := time.Since(clockStart)
	if last := c.armed.Load(); last == 0 || now-time.Duration(last) > c.timeout/16 {
		c.armed.Store(int64(now))
		if err := c.TCPConn.SetWriteDeadline(clockStart.Add(now + c.timeout)); err != nil {
			return 0, err
		}
	}
	return c.TCPConn.Write(p)
}

// SetWriteDeadline is how net/http takes the deadline away after each request
// of a connection; the next Write sets it again.
func (c *clientConn) SetWriteDeadline(t time.Time) error {
	c.armed.Store(0)
	return c.TCPConn.SetWriteDeadline(t)
}

// SetDeadline is SetWriteDeadline and SetReadDeadline.
func (c *clientConn) SetDeadline(t time.Time) error {
	c.armed.Store(0)
	return c.TCPConn.SetDeadline(t)
}
