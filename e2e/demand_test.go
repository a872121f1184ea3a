//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/planner"
)

// lazyModel runs only while somebody asks for it. Its engine takes lazyInit after its
// weights until it answers, so that clients see that they wait.
const (
	lazyModel = "sleepy"
	lazyInit  = 4 * time.Second
)

// onDemand: a model without requests goes away, a request brings it back, and each client
// that waits for that is told how it ends.
func onDemand(t *testing.T, f *fleet) {
	d := &demand{fleet: f, gateways: f.twoGateways()}
	f.applyTier(tierModel{name: lazyModel, replicas: 1, more: `idle {
    warm = "3s"
    cold = "6s"
  }`, vars: fmt.Sprintf(", init_delay = %q", lazyInit)})
	f.tiers(lazyModel, 1, 0, 0)
	inTurn(t, d, d.use, []part[*demand]{
		{"fifty waiters cause one load", oneLoad},
		{"a deadline is kept", deadlineKept},
		{"waiters that leave cause nothing", waitersLeave},
		{"a gateway that ends serves who waits", gatewayDrains},
		{"a gateway that cannot wait says so", gatewayEnds},
	})
	f.t = t
	f.clear(lazyModel)
}

// use says whose test the cluster serves.
func (d *demand) use(t *testing.T) {
	d.t = t
	for _, g := range d.gateways {
		g.t = t
	}
}

// demand is a cluster with two gateways and a model that sleeps.
type demand struct {
	*fleet
	gateways [2]*gatewayProcess
	// loads is how long the model took to answer, for each time it was loaded.
	loads []time.Duration
}

// asleep waits until the model has neither an engine nor a seat.
func (d *demand) asleep() {
	d.t.Helper()
	begin := time.Now()
	d.tiers(lazyModel, 0, 0, 1)
	eventually(d.t, time.Minute, "no engine of the model", func() error {
		engines, err := d.passing(lazyModel)
		if err == nil && len(engines) > 0 {
			err = fmt.Errorf("there is %s", engines[0].ID())
		}
		return err
	})
	d.t.Logf("asleep after %s", time.Since(begin).Round(100*time.Millisecond))
}

// started returns how often the model was placed.
func (d *demand) started() int {
	d.t.Helper()
	list, _, err := d.api.Decisions(d.t.Context(), api.DecisionFilter{Model: lazyModel, Limit: 1000}, api.QueryOptions{})
	require.NoError(d.t, err)
	n := 0
	for _, decision := range list {
		if decision.Kind == planner.KindPlace {
			n++
		}
	}
	require.NotZero(d.t, n)
	return n
}

// answered sends one request, waits for its answer, and returns how long that took.
func (d *demand) answered(prompt string) time.Duration {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), clientDeadline)
	defer cancel()
	begin := time.Now()
	r := ask(lazyModel, "", prompt, 6, true, true).to(ctx, client, d.gateways[0].url)
	require.Equal(d.t, whole, r.ending, "%v", r.err)
	return time.Since(begin)
}

// waiters sends n requests at once, half of them streamed, through both gateways or one,
// and returns a function that waits for their answers.
func (d *demand) waiters(n int, gateways []*gatewayProcess, change func(i int, q *question)) func() []reply {
	replies := make([]reply, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), clientDeadline)
			defer cancel()
			q := ask(lazyModel, "", fmt.Sprintf("waiter %d of %s", i, d.t.Name()), 6, true, i%2 == 0)
			if change != nil {
				change(i, &q)
			}
			replies[i] = q.to(ctx, client, gateways[i/2%len(gateways)].url)
		})
	}
	return func() []reply { wg.Wait(); return replies }
}

// standing is what a client that waits is told.
var standing = regexp.MustCompile(`^remuda state=(PROVISIONING|DEPLOYING|READY|BUSY) position=([0-9]+) waited=[0-9]+s$`)

func oneLoad(t *testing.T, d *demand) {
	const n = 50
	d.asleep()
	before, begin := d.started(), time.Now()
	replies := d.waiters(n, d.gateways[:], nil)()
	states, told := map[string]int{}, 0
	first := begin.Add(clientDeadline)
	for i, r := range replies {
		require.Equal(t, whole, r.ending, "waiter %d: %v", i, r.err)
		if r.first.Before(first) {
			first = r.first
		}
		if i%2 == 1 {
			require.Empty(t, r.comments, "an answer that is not streamed")
			continue
		}
		for _, c := range r.comments {
			match := standing.FindStringSubmatch(c)
			require.NotNil(t, match, "comment %q", c)
			position, err := strconv.Atoi(match[2])
			require.NoError(t, err)
			require.LessOrEqual(t, position, n)
			require.NotZero(t, position)
			states[match[1]]++
		}
		if len(r.comments) > 0 {
			told++
		}
	}
	require.NotZero(t, told, "no waiter was told that it waits")
	require.Contains(t, states, api.QueueDeploying)
	d.loads = append(d.loads, first.Sub(begin))
	t.Logf("%d waiters; the first had its answer after %s; told states %v", n, d.loads[0].Round(10*time.Millisecond), states)
	d.tiers(lazyModel, 1, 0, 0)
	require.Equal(t, before+1, d.started(), "how often it was placed")
}

func deadlineKept(t *testing.T, d *demand) {
	d.asleep()
	begin := time.Now()
	// A stream that has not begun when its deadline is over gets a proper status as well.
	limits := []time.Duration{2 * time.Second, time.Second, 2 * time.Second, time.Second}
	replies := d.waiters(len(limits), d.gateways[:], func(i int, q *question) {
		q.stream = limits[i] == time.Second
		again := ask(lazyModel, "", fmt.Sprintf("deadline %d", i), 6, true, q.stream)
		again.header = http.Header{"X-Remuda-Timeout": {limits[i].String()}}
		*q = again
	})()
	took := time.Since(begin)
	require.GreaterOrEqual(t, took, 2*time.Second)
	t.Logf("the last deadline of 2 s was answered after %s", took.Round(10*time.Millisecond))
	var retry int
	for i, r := range replies {
		var status statusError
		require.ErrorAs(t, r.err, &status, "%s", r.ending)
		require.Equal(t, http.StatusServiceUnavailable, status.code, status.body)
		var err error
		retry, err = strconv.Atoi(r.header.Get("Retry-After"))
		require.NoError(t, err, "Retry-After of waiter %d", i)
		require.Positive(t, retry)
	}
	// They have brought it up all the same, and were told when that would be: it took as
	// long as the time before.
	answered := d.answered("after the deadline")
	t.Logf("told to come back after %d s, answered after %s more; the load before took %s", retry, answered.Round(10*time.Millisecond), d.loads[0].Round(10*time.Millisecond))
}

func waitersLeave(t *testing.T, d *demand) {
	d.asleep()
	before := d.started()
	// No controller learns of the demand while there is any.
	for _, s := range d.servers {
		s.end(syscall.SIGKILL)
	}
	replies := d.waiters(20, d.gateways[:], func(_ int, q *question) { q.leaveAfter = 3 * time.Second })()
	for i, r := range replies {
		require.Equal(t, left, r.ending, "waiter %d: %v", i, r.err)
	}
	for _, s := range d.servers {
		s.start()
	}
	d.leader()
	for _, g := range d.gateways {
		g.ready()
	}
	// Demand that was kept would be in the first report, and acted upon at once.
	for range 3 {
		all, err := d.replicas(lazyModel)
		require.NoError(t, err)
		for _, r := range all {
			require.Equal(t, "COLD", r.Tier, "no client waits for it")
		}
		time.Sleep(time.Second)
	}
	require.Equal(t, before, d.started(), "how often it was placed")
}

func gatewayDrains(t *testing.T, d *demand) {
	d.asleep()
	g := d.gateways[1]
	answers := d.waiters(20, []*gatewayProcess{g}, nil)
	d.waits(20)
	g.restart(syscall.SIGTERM)
	for i, r := range answers() {
		require.Equal(t, whole, r.ending, "waiter %d: %v", i, r.err)
	}
}

func gatewayEnds(t *testing.T, d *demand) {
	g := d.gateways[1]
	g.configure("timeouts {\n  drain = \"1s\"\n}\n")
	d.asleep()
	answers := d.waiters(20, []*gatewayProcess{g}, nil)
	d.waits(20)
	g.restart(syscall.SIGTERM)
	how := map[string]int{}
	for i, r := range answers() {
		require.Equal(t, unanswered, r.ending, "waiter %d", i)
		require.False(t, r.cut, "waiter %d has no answer: %v", i, r.err)
		var status statusError
		switch {
		case errors.As(r.err, &status):
			require.Equal(t, http.StatusServiceUnavailable, status.code, status.body)
			require.NotEmpty(t, r.header.Get("Retry-After"))
			how["status 503"]++
		default:
			require.ErrorIs(t, r.err, errToldSo, "waiter %d", i)
			how["an event"]++
		}
	}
	t.Logf("told by %v", how)
	g.configure("timeouts {\n  drain = \"25s\"\n}\n")
	d.answered("and it still comes up")
}

// waits waits until the controller knows of so many requests that wait for the model.
func (d *demand) waits(n int) {
	d.t.Helper()
	eventually(d.t, 20*time.Second, fmt.Sprintf("%d requests to wait", n), func() error {
		list, err := d.api.Queues(d.t.Context())
		if err != nil {
			return err
		}
		i := slices.IndexFunc(list, func(q api.Queue) bool { return q.Model == lazyModel })
		if i < 0 || list[i].Waiting != n {
			return fmt.Errorf("the queues are %+v", list)
		}
		return nil
	})
}
