package nomad

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/hashicorp/nomad/api"
)

const (
	// answerSlack is granted on top of Wait and of Nomad's jitter (Wait/16).
	answerSlack = 2 * time.Second
	minRetry    = 100 * time.Millisecond
	maxRetry    = 5 * time.Second
)

// follow asks query again and again, each time for what is newer than the last
// answer, until ctx ends; it returns ctx's error. query handles its answer itself;
// restarted tells it that Nomad's index went back (it was restored or is another
// cluster), so that nothing that it remembers counts. lost is called once at the
// begin of each outage.
func (c *Client) follow(ctx context.Context, what string, query func(q *api.QueryOptions, restarted bool) (*api.QueryMeta, error), lost func(error)) error {
	var (
		index     uint64 // what the next query is newer than, 0: it does not wait
		newest    uint64 // the last answer's
		restarted bool
		outage    bool
		retry     = minRetry
	)
	for {
		began := time.Now()
		next, err := c.ask(ctx, what, index, restarted, query)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			if !outage {
				c.cfg.Logger.Warn("lost the connection of a Nomad watch: keeping the last known state", "watch", what, "error", err)
				lost(err)
			}
			outage, index = true, 0
			if err := pause(ctx, retry/2+rand.N(retry)); err != nil {
				return err
			}
			retry = min(retry*2, maxRetry)
			continue
		}
		if outage {
			c.cfg.Logger.Info("a Nomad watch resumed", "watch", what, "index", next)
		}
		retry, outage, restarted = minRetry, false, false
		index = next
		if next < newest { // start over, as for Consul's blocking queries
			c.cfg.Logger.Warn("Nomad's index went backwards: reading everything again", "watch", what, "from", newest, "to", next)
			index, restarted = 0, true
		}
		newest = next
		if err := pause(ctx, c.cfg.Settle-time.Since(began)); err != nil {
			return err
		}
	}
}

func (c *Client) ask(ctx context.Context, what string, index uint64, restarted bool, query func(*api.QueryOptions, bool) (*api.QueryMeta, error)) (uint64, error) {
	limit := c.cfg.Timeout
	if index > 0 {
		limit = c.cfg.Wait + c.cfg.Wait/16 + min(answerSlack, c.cfg.Timeout)
	}
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	q := (&api.QueryOptions{WaitIndex: index, WaitTime: c.cfg.Wait}).WithContext(bounded)
	meta, err := query(q, restarted)
	if err != nil {
		return 0, classify(ctx, what, err)
	}
	if !answered(meta) {
		// The next query would not wait, and so on for ever.
		return 0, fmt.Errorf("%s: %w: the answer has no X-Nomad-Index: is %s a Nomad agent?", what, ErrUnreachable, c.api.Address())
	}
	// 1 waits, and is before everything that can come.
	return max(meta.LastIndex, 1), nil
}

// answered tells whether it was a Nomad that answered. One that never had a job, as a
// new one, says that the index of its jobs is 0.
func answered(meta *api.QueryMeta) bool { return meta.LastIndex > 0 || meta.KnownLeader }

// pause sleeps unless ctx ends first.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
