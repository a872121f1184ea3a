package consul

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/hashicorp/go-hclog"

	"remuda/internal/replica"
)

// WatcherConfig says how engines are watched.
type WatcherConfig struct {
	Address Address
	// Wait is how long one blocking query may stay open, at least 1s. It
	// bounds how late a Consul that hangs without closing its connections is
	// noticed, so it is far below Consul's default of five minutes.
	Wait   time.Duration
	Logger hclog.Logger
}

// DefaultWatcherConfig has the reasons beside the numbers.
func DefaultWatcherConfig() WatcherConfig {
	return WatcherConfig{
		Wait:   10 * time.Second, // six cheap queries a minute; a hang is seen in about 13 s
		Logger: hclog.NewNullLogger(),
	}
}

const (
	// answerSlack is granted on top of Wait and of Consul's jitter (Wait/16).
	answerSlack = 2 * time.Second
	minRetry    = 100 * time.Millisecond
	maxRetry    = 2 * time.Second
)

// Watcher follows the service remuda-engine by blocking queries.
type Watcher struct {
	cfg       WatcherConfig
	client    *api.Client
	transport *http.Transport
	addr      string
	// filtered tells that the last answer lacked what the token may not see.
	filtered bool
	// node is the name of the agent's node, empty until it is known; denied: the token may not read it.
	node   string
	denied bool
}

// NewWatcher validates cfg; it talks to nobody.
func NewWatcher(cfg WatcherConfig) (*Watcher, error) {
	var errs []error
	if cfg.Wait < time.Second {
		errs = append(errs, fmt.Errorf("wait is %s: must be at least 1s", cfg.Wait))
	}
	if cfg.Logger == nil {
		errs = append(errs, errors.New("logger must be set"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("consul watcher: %w", err)
	}
	client, transport, err := newClient(cfg.Address)
	if err != nil {
		return nil, err
	}
	return &Watcher{cfg: cfg, client: client, transport: transport, addr: cfg.Address.String()}, nil
}

// Watch calls update with the complete list of engines, passing or not and
// sorted by ID, once at first and again after each change. When Consul gets out
// of reach it calls lost once and keeps trying; the first list after such an
// outage is delivered even if it is the same, with afterOutage true, because a
// Consul that has just come back may not know yet what runs. Both are called
// from one goroutine. Watch returns when ctx ends, always with ctx's error.
func (w *Watcher) Watch(ctx context.Context, update func(engines []replica.Engine, afterOutage bool), lost func()) error {
	defer w.transport.CloseIdleConnections()
	var (
		index   uint64
		last    []replica.Engine
		first   = true
		outage  bool
		retry   = minRetry
		skipped = map[string]string{}
	)
	for {
		engines, next, err := w.query(ctx, index, skipped)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			if !outage {
				what := "cannot reach Consul: keeping the last known engines"
				if refused(err) {
					what = "Consul denies listing the engines: keeping the last known ones; check the token's permissions"
				}
				w.cfg.Logger.Warn(what, "error", err)
				lost()
			}
			outage, index = true, 0
			delay := retry/2 + rand.N(retry)
			retry = min(retry*2, maxRetry)
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(delay):
			}
			continue
		}
		retry = minRetry
		if outage {
			w.cfg.Logger.Info("Consul is reachable again", "engines", len(engines))
		}
		if next < index { // Consul's index went backwards: start over, as its docs ask.
			next = 0
		}
		index = next
		if first || outage || !slices.Equal(engines, last) {
			update(engines, outage && !first)
		}
		first, outage, last = false, false, engines
	}
}

// nodeTimeout bounds how long the list waits for the name of the node.
const nodeTimeout = time.Second

// learnNode asks the agent once for the name of its node. Without it no engine is near, which costs a
// little time and nothing else.
func (w *Watcher) learnNode(ctx context.Context) {
	if w.node != "" || w.denied {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, nodeTimeout)
	defer cancel()
	var self struct{ Config struct{ NodeName string } }
	_, err := w.client.Raw().Query("/v1/agent/self", &self, (&api.QueryOptions{}).WithContext(ctx))
	switch {
	case err == nil:
		w.node = self.Config.NodeName
	case refused(err):
		w.denied = true
		w.cfg.Logger.Warn("Consul does not tell this token the name of its node, so engines on this node are not preferred: grant it agent:read", "error", err)
	default:
		w.cfg.Logger.Debug("cannot ask Consul for the name of its node", "error", err)
	}
}

func (w *Watcher) query(ctx context.Context, index uint64, skipped map[string]string) ([]replica.Engine, uint64, error) {
	limit := answerSlack
	if index > 0 {
		limit += w.cfg.Wait + w.cfg.Wait/16
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	q := (&api.QueryOptions{WaitIndex: index, WaitTime: w.cfg.Wait, AllowStale: true}).WithContext(ctx)
	entries, meta, err := w.client.Health().Service(replica.ServiceName, "", false, q)
	if err != nil {
		return nil, 0, fmt.Errorf("list service %s: %w", replica.ServiceName, err)
	}
	if meta.LastIndex == 0 {
		// The next query would not block, and so on for ever.
		return nil, 0, fmt.Errorf("list service %s: the answer has no X-Consul-Index: is %s a Consul agent?", replica.ServiceName, w.addr)
	}
	if meta.ResultsFilteredByACLs && !w.filtered {
		w.cfg.Logger.Warn("Consul hides engines from this token: grant it service:read and node:read", "listed", len(entries))
	}
	w.filtered = meta.ResultsFilteredByACLs
	w.learnNode(ctx)
	engines := make([]replica.Engine, 0, len(entries))
	for _, entry := range entries {
		e, err := engineOf(entry)
		if err != nil {
			if skipped[entry.Service.ID] != err.Error() {
				skipped[entry.Service.ID] = err.Error()
				w.cfg.Logger.Warn("ignoring a registration", "error", err)
			}
			continue
		}
		e.Near = w.node != "" && entry.Node != nil && entry.Node.Node == w.node
		engines = append(engines, e)
	}
	slices.SortFunc(engines, func(a, b replica.Engine) int { return strings.Compare(a.ID(), b.ID()) })
	return engines, meta.LastIndex, nil
}
