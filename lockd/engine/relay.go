package engine

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"
	"time"

	"remuda/internal/certificate"
)

// relayHandshake bounds the start of a connection over TLS.
const relayHandshake = 10 * time.Second

// relay serves the engine over TLS: it passes the bytes of each connection on to a connection of its own. Stop
// ends all of them.
type relay struct {
	shim     *Shim
	engine   string // host:port
	listener net.Listener
	config   *tls.Config
	cancel   context.CancelFunc
	running  sync.WaitGroup
}

// serveTLS starts the relay if there is to be one.
func (s *Shim) serveTLS(ctx context.Context) (stop func(), err error) {
	if s.cfg.TLSListen == "" {
		return func() {}, nil
	}
	u, err := url.Parse(s.cfg.EngineURL)
	if err != nil {
		return nil, fmt.Errorf("engine-url: %w", err)
	}
	pair := certificate.New(s.cfg.TLSCert, s.cfg.TLSKey, s.logger.Named("tls"))
	if err := pair.Load(); err != nil {
		return nil, err //nolint:wrapcheck // it names the files
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.cfg.TLSListen)
	if err != nil {
		return nil, fmt.Errorf("listen on tls-listen: %w", err)
	}
	// Gateways keep their connections. Tickets would be bytes that they did not ask for.
	r := &relay{shim: s, engine: u.Host, listener: listener, config: &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: pair.Get, SessionTicketsDisabled: true}}
	ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	r.running.Go(func() { pair.Watch(ctx) })
	r.running.Go(func() { r.accept(ctx) })
	return func() {
		r.cancel()
		_ = listener.Close()
		r.running.Wait()
	}, nil
}

func (r *relay) accept(ctx context.Context) {
	for {
		client, err := r.listener.Accept()
		switch {
		case err == nil:
			r.running.Go(func() { r.serve(ctx, client) })
		case ctx.Err() != nil:
			return
		default: // too many open files: they become fewer
			r.shim.logger.Warn("cannot accept a connection over TLS", "error", err)
			if pause(ctx, 100*time.Millisecond) != nil {
				return
			}
		}
	}
}

// serve serves one connection. The engine is connected first: where it does not answer, the client sees no
// connection, and can send its request to another engine.
func (r *relay) serve(ctx context.Context, client net.Conn) {
	defer client.Close()
	engine, err := (&net.Dialer{Timeout: relayHandshake}).DialContext(ctx, "tcp", r.engine)
	if err != nil {
		return
	}
	defer engine.Close()
	stop := context.AfterFunc(ctx, func() { _ = client.Close(); _ = engine.Close() })
	defer stop()
	secured := tls.Server(client, r.config)
	shaking, cancel := context.WithTimeout(ctx, relayHandshake)
	err = secured.HandshakeContext(shaking)
	cancel()
	if err != nil {
		if !errors.Is(err, io.EOF) {
			r.shim.logger.Debug("a connection over TLS failed", "client", client.RemoteAddr().String(), "error", err)
		}
		return
	}
	var requests sync.WaitGroup
	requests.Go(func() {
		_, _ = io.Copy(engine, secured)
		_ = engine.Close() // the client has left
	})
	_, _ = io.Copy(secured, engine)
	_ = secured.Close() // tells the client that this is the end, and not a broken connection
	requests.Wait()
}
