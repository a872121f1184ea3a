package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-cleanhttp"

	"remuda/controller/api"
	"remuda/controller/raft"
	"remuda/controller/state"
)

// peerAsk bounds the question where the leader's API is, which one exchange answers.
const peerAsk = 2 * time.Second

// peers is the way to the other servers' APIs.
type peers struct {
	http *http.Client
	// scheme is of addresses that have none.
	scheme string

	mu sync.Mutex
	// leader is the one that api is of.
	leader raft.Peer
	api    *url.URL
}

func newPeers(cfg Config) *peers {
	t := cleanhttp.DefaultPooledTransport()
	t.MaxIdleConnsPerHost = 64 // every gateway's watch may come through this server
	t.DisableCompression = true
	t.Proxy = nil
	p := &peers{http: &http.Client{Transport: t}, scheme: "http"}
	if cfg.Peers != nil {
		t.TLSClientConfig, p.scheme = cfg.Peers.Clone(), "https"
	}
	p.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return p
}

func (p *peers) close() { p.http.CloseIdleConnections() }

// find returns where the leader's API is.
func (p *peers) find(ctx context.Context, r Raft, leader raft.Peer) (*url.URL, error) {
	p.mu.Lock()
	known, at := p.leader, p.api
	p.mu.Unlock()
	if known == leader && at != nil {
		return at, nil
	}
	ctx, cancel := context.WithTimeout(ctx, peerAsk)
	defer cancel()
	text, err := r.LeaderAPI(ctx)
	if err != nil {
		return nil, err
	}
	if text == "" {
		return nil, fmt.Errorf("the leader, %s at %s, has no API address: set http.advertise in its config", leader.ID, leader.Address)
	}
	if !strings.Contains(text, "://") {
		text = p.scheme + "://" + text
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("the leader's API: %w", err)
	}
	p.mu.Lock()
	p.leader, p.api = leader, u
	p.mu.Unlock()
	return u, nil
}

// forget makes the next find ask again.
func (p *peers) forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leader, p.api = raft.Peer{}, nil
}

// forward passes a request on to the leader, and its answer back. It returns
// raft.ErrNotLeader only where nothing has happened and nothing was answered yet.
func (s *Server) forward(w http.ResponseWriter, rq *request, leader raft.Peer) (err error) {
	defer func() { s.metrics.forwarded(err) }()
	at, err := s.peers.find(rq.ctx, s.cfg.Raft, leader)
	if err != nil {
		return fmt.Errorf("%w, and the leader cannot be reached: %w", raft.ErrNotLeader, err)
	}
	ctx, cancel := context.WithCancel(rq.ctx)
	defer cancel()
	defer s.watchLeader(ctx, cancel, rq, leader)()

	if err := s.admit(rq, func() error { return s.leaderAuthorizes(ctx, rq, at) }); err != nil {
		return err
	}
	var sent atomic.Bool
	trace := &httptrace.ClientTrace{WroteHeaders: func() { sent.Store(true) }}
	out, err := s.outgoing(httptrace.WithClientTrace(ctx, trace), rq, at)
	if err != nil {
		return err
	}
	resp, err := s.peers.http.Do(out)
	if err != nil {
		s.peers.forget()
		switch {
		case rq.Context().Err() != nil:
			return context.Canceled
		case s.isStopping():
			if sent.Load() && rq.route.read == nil {
				return fmt.Errorf("%w: %w", raft.ErrUnknownOutcome, errStopping)
			}
			return fmt.Errorf("%w: %w", raft.ErrClosed, errStopping)
		case sent.Load() && rq.route.read == nil:
			return fmt.Errorf("%w: the leader did not respond: %w", raft.ErrUnknownOutcome, err)
		}
		return fmt.Errorf("%w: %w", raft.ErrNotLeader, err)
	}
	defer resp.Body.Close()
	if resp.Header.Get(headerNotLeader) != "" {
		s.peers.forget()
		return fmt.Errorf("%w, and %s is no longer the leader either", raft.ErrNotLeader, leader.ID)
	}
	return pass(w, resp)
}

// leaderAuthorizes asks the leader whether the token of a request may call its route.
func (s *Server) leaderAuthorizes(ctx context.Context, rq *request, at *url.URL) error {
	c, err := api.NewClient(api.Config{
		Addresses: []string{at.Scheme + "://" + at.Host}, Token: secret(rq.Header), HTTPClient: &http.Client{Transport: marked{s}},
	})
	if err != nil {
		return err
	}
	token, _, err := c.SelfToken(ctx, api.QueryOptions{})
	var rejected *api.Error
	switch {
	case err == nil:
		return permit(rq.route, state.Role(token.Role))
	case errors.As(err, &rejected) && rejected.Code != api.CodeNoLeader:
		return err
	}
	s.peers.forget()
	return fmt.Errorf("%w: %w", raft.ErrNotLeader, err)
}

// marked sends requests that the leader does not forward again.
type marked struct{ s *Server }

func (m marked) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(api.HeaderForwarded, m.s.cfg.Raft.ID())
	return m.s.peers.http.Transport.RoundTrip(r)
}

// outgoing is the request as the leader gets it.
func (s *Server) outgoing(ctx context.Context, rq *request, at *url.URL) (*http.Request, error) {
	query := url.Values{}
	for k, v := range rq.query {
		query[k] = v
	}
	if rq.index > 0 {
		// This server has added a sixteenth at most, and so does the leader: the client
		// is not ready for both.
		query.Set(paramWait, min(max(time.Until(rq.until)*16/17, time.Millisecond), api.MaxWait).String())
	}
	to := at.Scheme + "://" + at.Host + rq.URL.EscapedPath()
	if len(query) > 0 {
		to += "?" + query.Encode()
	}
	var body io.Reader
	switch {
	case rq.route.streams():
		body = struct{ io.Reader }{rq.stream}
	case len(rq.body) > 0:
		body = bytes.NewReader(rq.body)
	}
	out, err := http.NewRequestWithContext(ctx, rq.Method, to, body)
	if err != nil {
		return nil, fmt.Errorf("forward: %w", err)
	}
	if rq.route.streams() {
		out.ContentLength = rq.ContentLength
	}
	out.Header.Set(api.HeaderForwarded, s.cfg.Raft.ID())
	if shown := secret(rq.Header); shown != "" {
		out.Header.Set(api.HeaderToken, shown)
	}
	out.Header.Set("User-Agent", rq.UserAgent()) // the list of autoscalers goes by it
	if kind := rq.Header.Get("Content-Type"); kind != "" {
		out.Header.Set("Content-Type", kind)
	}
	return out, nil
}

// passedHeaders are the headers of an answer that are passed on.
var passedHeaders = []string{
	"Content-Type", "Content-Length", "Retry-After", "Www-Authenticate", "Connection",
	api.HeaderIndex, api.HeaderLastContact, api.HeaderKnownLeader,
}

// pass hands an answer on.
func pass(w http.ResponseWriter, resp *http.Response) error {
	for _, name := range passedHeaders {
		if v := resp.Header.Values(name); len(v) > 0 {
			w.Header()[http.CanonicalHeaderKey(name)] = v
		}
	}
	w.WriteHeader(resp.StatusCode)
	if _, err := io.Copy(w, resp.Body); err != nil {
		return fmt.Errorf("forward the leader's response: %w", err)
	}
	return nil
}

// leaderLook is how often a request that was passed on looks whether the leader is the
// same, and leaderGrace how long a write then waits for the old one's answer.
const (
	leaderLook  = 200 * time.Millisecond
	leaderGrace = 2 * time.Second
)

// watchLeader gives a forwarded request up when another server leads, which the old
// leader may be unable to say, or when this one stops. The function that it returns
// ends the watch.
func (s *Server) watchLeader(ctx context.Context, cancel context.CancelFunc, rq *request, leader raft.Peer) func() {
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		tick := time.NewTicker(leaderLook)
		defer tick.Stop()
		stopping := s.stopping
		if rq.route.read == nil {
			stopping = nil // Run waits for writes.
		}
		var gone time.Time
		for {
			select {
			case <-done:
				return
			case <-ctx.Done():
				return
			case <-stopping:
				cancel()
				return
			case <-tick.C:
			}
			if now := s.cfg.Raft.Leader(); now.ID == "" || now == leader {
				gone = time.Time{}
				continue
			}
			if gone.IsZero() {
				gone = time.Now()
			}
			if rq.route.read != nil || time.Since(gone) > leaderGrace {
				cancel()
				return
			}
		}
	})
	return func() {
		close(done)
		wg.Wait()
	}
}

func (s *Server) isStopping() bool {
	select {
	case <-s.stopping:
		return true
	default:
		return false
	}
}

// forwardResult is a forward's label in metrics.
func forwardResult(err error) string {
	switch {
	case err == nil:
		return "answered"
	case errors.Is(err, raft.ErrNotLeader):
		return "no_leader"
	case errors.Is(err, raft.ErrUnknownOutcome):
		return "unknown_outcome"
	}
	return "failed"
}
