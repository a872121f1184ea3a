package nomad

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"golang.org/x/time/rate"
)

// Config says how to reach Nomad.
type Config struct {
	// Address is a URL, as "https://nomad.example:4646". Empty means NOMAD_ADDR, or
	// http://127.0.0.1:4646 without that.
	Address string
	// Token is the ACL token; empty means NOMAD_TOKEN. It needs node:read, and
	// submit-job, read-job and list-jobs in the namespace.
	Token string
	// Namespace of the replicas' jobs; empty means NOMAD_NAMESPACE, or "default".
	Namespace string
	// Region; empty means NOMAD_REGION, or the agent's.
	Region string
	// Isolated: the environment says nothing, neither NOMAD_ADDR nor NOMAD_TOKEN nor any
	// other. It is meant for another Nomad than this machine's, which must not be shown that
	// one's token.
	Isolated bool
	// NodePool: only the nodes of this pool of Nomad's are in the inventory; empty: all.
	NodePool string
	// TLS; nil means NOMAD_CACERT and friends.
	TLS *api.TLSConfig
	// Timeout bounds every request that does not wait for a change.
	Timeout time.Duration
	// Wait is how long a query may wait for a change. It bounds how late a Nomad
	// that hangs without closing its connections is noticed.
	Wait time.Duration
	// Settle is the least time between two queries of one watch, in which changes
	// are gathered.
	Settle time.Duration
	// Rate is how many requests a second are sent at most, on average, and Burst how
	// many at once. Waiting queries have Settle instead, and reads of changed nodes a limit of
	// their own; the statistics of nodes have as many of their own, so that they keep nothing
	// waiting.
	Rate  float64
	Burst int

	Logger hclog.Logger
}

// DefaultConfig has the reasons beside the numbers.
func DefaultConfig() Config {
	return Config{
		Timeout: 10 * time.Second,      // a leader election takes less
		Wait:    10 * time.Second,      // a hang is seen within 13 s, for six cheap queries a minute
		Settle:  50 * time.Millisecond, // one allocation's start is some ten events in a row
		Rate:    50,                    // a Nomad server commits some hundreds of writes a second, not only ours
		Burst:   100,                   // one large model's replicas at once
		Logger:  hclog.NewNullLogger(),
	}
}

// Client talks to Nomad. Its methods may be called from several goroutines at once
// and return when their context ends.
type Client struct {
	cfg       Config
	api       *api.Client
	namespace string
	limit     *rate.Limiter
	// stats is the limit of the statistics of nodes.
	stats *rate.Limiter
	// now is for nodes whose loss Nomad has no time of.
	now func() time.Time
}

// New checks cfg; it talks to nobody.
func New(cfg Config) (*Client, error) {
	var errs []error
	if cfg.Address != "" {
		if u, err := url.Parse(cfg.Address); err != nil || u.Host == "" && u.Scheme != "unix" || u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "unix" {
			errs = append(errs, fmt.Errorf("address is %q: must be a URL, such as http://127.0.0.1:4646", cfg.Address))
		}
	}
	for _, d := range []struct {
		name string
		is   time.Duration
		low  time.Duration
	}{{"timeout", cfg.Timeout, time.Millisecond}, {"wait", cfg.Wait, 10 * time.Millisecond}, {"settle", cfg.Settle, time.Millisecond}} {
		if d.is < d.low {
			errs = append(errs, fmt.Errorf("%s is %s: must be at least %s", d.name, d.is, d.low))
		}
	}
	if !(cfg.Rate > 0) || cfg.Rate > 1e6 {
		errs = append(errs, fmt.Errorf("rate is %g: must be more than 0 and at most 1e6 requests a second", cfg.Rate))
	}
	if cfg.Burst < 1 {
		errs = append(errs, fmt.Errorf("burst is %d: must be at least 1", cfg.Burst))
	}
	if cfg.Isolated && cfg.Address == "" {
		errs = append(errs, errors.New("address must be set"))
	}
	if cfg.Logger == nil {
		errs = append(errs, errors.New("logger must be set"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("nomad: %w", err)
	}
	ac := api.DefaultConfig()
	if cfg.Isolated {
		ac = &api.Config{TLSConfig: &api.TLSConfig{}}
	}
	ac.Address = cmp.Or(cfg.Address, ac.Address)
	ac.SecretID = cmp.Or(cfg.Token, ac.SecretID)
	ac.Namespace = cmp.Or(cfg.Namespace, ac.Namespace, api.DefaultNamespace)
	ac.Region = cmp.Or(cfg.Region, ac.Region)
	if cfg.TLS != nil {
		ac.TLSConfig = cfg.TLS
	}
	client, err := api.NewClient(ac)
	if err != nil {
		return nil, fmt.Errorf("nomad at %s: %w", ac.Address, err)
	}
	return &Client{
		cfg: cfg, api: client, namespace: ac.Namespace, now: time.Now,
		limit: rate.NewLimiter(rate.Limit(cfg.Rate), cfg.Burst), stats: rate.NewLimiter(rate.Limit(cfg.Rate), cfg.Burst),
	}, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.api.Close() }

// call runs one request under the rate limit and the timeout.
func (c *Client) call(ctx context.Context, what string, request func(ctx context.Context) error) error {
	return c.callUnder(ctx, c.limit, what, request)
}

// callUnder is call with a rate limit of its own.
func (c *Client) callUnder(ctx context.Context, limit *rate.Limiter, what string, request func(ctx context.Context) error) error {
	if limit.Wait(ctx) != nil {
		// It fails at once if ctx would end before its turn.
		return fmt.Errorf("%s: %w", what, cmp.Or(ctx.Err(), context.DeadlineExceeded))
	}
	bounded, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	return classify(ctx, what, request(bounded))
}

func (c *Client) read(ctx context.Context) *api.QueryOptions {
	return (&api.QueryOptions{}).WithContext(ctx)
}

func (c *Client) write(ctx context.Context) *api.WriteOptions {
	return (&api.WriteOptions{}).WithContext(ctx)
}
