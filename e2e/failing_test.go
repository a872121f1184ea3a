//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/internal/devcluster"
	"remuda/jobs"
)

// TestFailingRequests: replicas that pass their health checks and fail requests. The parts run
// in order on one cluster.
func TestFailingRequests(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1, func(o *devcluster.Options) {
		o.GPUs = 4
		set(o, "controller", "reconcile {\n  canary_time = \"2m\"\n}\n")
	})
	f.remuda("model", "apply", f.modelFile("m", 2, nil))
	f.hot("m", 2)
	inTurn(t, f, f.use, []part[*fleet]{
		{"a replica that answers 500 is replaced", answers500},
		{"a replica without siblings that answers 500 is replaced", answers500Alone},
		{"a canary that fails a fifth of its requests is rolled back", canaryFails},
	})
}

// pace is one request each time that so much has passed, whether those before have ended or
// not, until the test ends it.
type pace struct {
	t      testing.TB
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu    sync.Mutex
	ended []outcome
}

// outcome is what came of a request.
type outcome struct {
	err error
	// replica answered, or failed it last; attempts is how many engines it was sent to.
	replica, attempts string
}

func (f *fleet) pace(model string, each time.Duration) *pace {
	ctx, cancel := context.WithCancel(context.Background())
	p := &pace{t: f.t, cancel: cancel}
	p.wg.Go(func() {
		tick := time.NewTicker(each)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			p.wg.Go(func() {
				r := askOnce(f.info.Gateway, model, fmt.Sprintf("%d is the number of this request", i))
				p.mu.Lock()
				defer p.mu.Unlock()
				p.ended = append(p.ended, r)
			})
		}
	})
	f.t.Cleanup(func() { p.end() })
	return p
}

// askOnce sends a request and reads the answer to its end.
func askOnce(gateway, model, prompt string) outcome {
	req, err := http.NewRequest(http.MethodPost, gateway+"/v1/chat/completions", bytes.NewReader(chatBody(model, prompt, 4, false)))
	if err != nil {
		return outcome{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return outcome{err: err}
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = statusError{resp.StatusCode, string(raw)}
	}
	return outcome{err: err, replica: resp.Header.Get("X-Remuda-Replica"), attempts: resp.Header.Get("X-Remuda-Attempts")}
}

// end waits for the requests that are on their way, and returns what came of all.
func (p *pace) end() []outcome {
	p.cancel()
	p.wg.Wait()
	return p.ended
}

// clean waits until n requests in a row, from now on, were answered by the first engine each.
func (p *pace) clean(n int) {
	p.t.Helper()
	p.mu.Lock()
	from := len(p.ended)
	p.mu.Unlock()
	eventually(p.t, 2*time.Minute, fmt.Sprintf("%d answers without a failure", n), func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		row := 0
		for _, r := range p.ended[from:] {
			if row++; r.err != nil || r.attempts != "1" {
				row = 0
			}
		}
		if row < n {
			return fmt.Errorf("the last %d of %d", row, len(p.ended)-from)
		}
		return nil
	})
}

// replaced waits until the model's n replicas serve and that one is not among them, and
// returns why it was replaced.
func (f *fleet) replaced(model, bad string, n int) (reason string) {
	f.t.Helper()
	began := time.Now()
	eventually(f.t, 3*time.Minute, "another replica in the place of "+bad, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		decisions, _, err := f.api.Decisions(ctx, api.DecisionFilter{Model: model, Limit: 50}, api.QueryOptions{})
		i := slices.IndexFunc(decisions, func(d api.Decision) bool { return d.Kind == "replaced" && d.Replica == bad })
		if err != nil || i < 0 {
			return errors.Join(err, errors.New("it was not decided"))
		}
		if reason == "" {
			f.t.Logf("decided after %s: %s", time.Since(began).Round(time.Second/10), decisions[i].Reason)
		}
		reason = decisions[i].Reason
		names, err := f.isHot(model, n)
		if err == nil && slices.Contains(names, bad) {
			err = errors.New("it still serves")
		}
		return err
	})
	f.t.Logf("replaced after %s", time.Since(began).Round(time.Second/10))
	return reason
}

func answers500(t *testing.T, f *fleet) {
	bad := f.hot("m", 2)[0]
	p := f.pace("m", 200*time.Millisecond)
	p.clean(20)
	f.fault(f.engineOf(bad), map[string]any{"error500": true})
	reason := f.replaced("m", bad, 2)
	require.Contains(t, reason, "requests failed")
	require.Contains(t, reason, "(siblings: 0 of ")
	p.clean(50)
	for _, r := range p.end() {
		require.NoError(t, r.err, "the siblings answered what it failed")
	}
	require.Contains(t, f.decisions("m"), "replaced")
	metrics, err := fetch(f.info.Controllers[0] + "/metrics")
	require.NoError(t, err)
	require.Equal(t, "1", linesWith(metrics, "remuda_controller_replacements_total")[`remuda_controller_replacements_total{model="m"}`])
}

func answers500Alone(t *testing.T, f *fleet) {
	f.remuda("scale", "m", "1")
	bad := f.hot("m", 1)[0]
	p := f.pace("m", 200*time.Millisecond)
	p.clean(20)
	f.fault(f.engineOf(bad), map[string]any{"error500": true})
	eventually(t, time.Minute, "failures in the status of the replica", func() error {
		r, _, err := f.api.Replica(t.Context(), bad, api.QueryOptions{})
		if err == nil && (r.Load == nil || r.Load.FailedInARow == 0) {
			err = fmt.Errorf("%+v", r.Load)
		}
		return err
	})
	t.Logf("remuda replica status:\n%s", f.remuda("replica", "status", bad))
	require.Contains(t, f.replaced("m", bad, 1), "(no requests at siblings)")
	p.clean(50)
	p.end()
	f.remuda("scale", "m", "2")
	f.hot("m", 2)
}

func canaryFails(t *testing.T, f *fleet) {
	before := f.hot("m", 2)
	const last = `"-init-delay", var.init_delay,`
	require.Contains(t, jobs.Demo, last)
	job := strings.Replace(jobs.Demo, last, last+"\n"+`          "-fault", "error500_every=5",`, 1)
	require.NoError(t, os.WriteFile(filepath.Join(f.dir, "failing.nomad.hcl"), []byte(job), 0o600))
	file := f.modelFile("m", 2, nil)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, bytes.Replace(text, []byte("demo.nomad.hcl"), []byte("failing.nomad.hcl"), 1), 0o600))

	p := f.pace("m", 100*time.Millisecond)
	p.clean(20)
	stop := f.floor("m", 2)
	out, err := f.tryRemuda("model", "apply", file)
	require.Error(t, err, "the command tells that the rollout failed:\n%s", out)
	t.Logf("remuda model apply:\n%s", out)
	var ro api.Rollout
	eventually(t, 3*time.Minute, "the rollback", func() error {
		st, _, err := f.api.Model(t.Context(), "m", api.QueryOptions{})
		if err != nil {
			return err
		}
		if ro = st.Model.Rollouts["sim"]; ro.Status != "rolled_back" || st.Counts != (api.Counts{Hot: 2}) {
			err = fmt.Errorf("%+v %+v", ro, st.Counts)
		}
		return err
	})
	stop()
	require.Contains(t, ro.Reason, "canary failed: ")
	require.Contains(t, ro.Reason, "recent requests failed (stable version: 0 of ")
	t.Logf("remuda model status m:\n%s", f.remuda("model", "status", "m"))
	p.clean(20)
	touched, canary := 0, 0
	ended := p.end()
	for _, r := range ended {
		require.NoError(t, r.err, "the replicas of before answered what it failed")
		switch {
		case r.attempts != "1":
			touched++
			canary++
		case !slices.Contains(before, r.replica):
			canary++
		}
	}
	t.Logf("%d requests, %d at the canary first, %d were failed there", len(ended), canary, touched)
	require.NotZero(t, touched)
	require.LessOrEqual(t, touched, canary/5+1, "it was asked for no more than its share")
}
