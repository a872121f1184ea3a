//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/internal/replica"
	"remuda/jobs"
)

// nodeFrozen: everything on a node stops without a word, as when the node is cut off. The pair that the
// model keeps WARM on the other node is woken, long before the node is given up, and what comes back
// disturbs no answer: none is made by two engines, and the old pair answers nothing before Consul lists it again.
func nodeFrozen(t *testing.T, f *fleet) {
	f.remuda("scale", "m", "0")
	f.hotWithin(5*time.Minute, "m", 0)
	path := filepath.Join(f.dir, "k.model.hcl")
	require.NoError(t, os.WriteFile(filepath.Join(f.dir, "stamped.nomad.hcl"), []byte(stamped(t, jobs.Failover)), 0o600))
	text := strings.Replace(f.modelText("k", 1, nil), "min      = 0\n", "min      = 0\n  keep_warm = 1\n  failover  = true\n", 1)
	text = strings.NewReplacer("demo.nomad.hcl", "stamped.nomad.hcl", "slots   = 4", "slots   = 32").Replace(text) // no request waits for another one
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	f.remuda("model", "apply", "-detach", path)
	var serves, rests, victim, other string
	for _, r := range f.tiers("k", 1, 1, 0) {
		if r.Status == "serving" {
			serves, victim = r.Name, r.NodeName
		} else {
			rests, other = r.Name, r.NodeName
		}
	}
	require.NotEqual(t, victim, other)
	t.Logf("%s", f.remuda("model", "status", "k"))
	w := &twins{f}
	eventually(t, time.Minute, "the standby of the pair that serves", func() error { return w.standsBy("k") })

	// A client comes every 100 ms. Each answer is the right one, or an error.
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var mu sync.Mutex
	type reply struct {
		asked, answered time.Time
		maker           string
	}
	var replies []reply
	failed, makers := map[string]int{}, map[string]bool{}
	ask := func(i int) {
		prompt, asked := fmt.Sprintf("request %d", i), time.Now()
		one, done := context.WithTimeout(ctx, 15*time.Second)
		defer done()
		got, err := streamChat(one, f.info.Gateway, "k", prompt, 16)
		mu.Lock()
		defer mu.Unlock()
		switch want := exact("k", prompt, 16).Text; {
		case len(got.makers) > 1:
			t.Errorf("%s: processes %q have made it", prompt, got.makers)
		case ctx.Err() != nil:
		case err != nil:
			failed[fmt.Sprintf("%.60s", err)]++
		case got.text != want:
			t.Errorf("%s: got %q, want %q", prompt, got.text, want)
		case len(got.makers) == 0:
			t.Errorf("%s: it has no stamp", prompt)
		default:
			makers[got.makers[0]] = true
			replies = append(replies, reply{asked, time.Now(), got.makers[0]})
		}
	}
	wg.Go(func() {
		for i := 0; ctx.Err() == nil && i < 3000; i++ {
			wg.Go(func() { ask(i) })
			time.Sleep(100 * time.Millisecond)
		}
	})
	defer func() { cancel(); wg.Wait() }()
	eventually(t, time.Minute, "answers", func() error {
		mu.Lock()
		defer mu.Unlock()
		if len(replies) < 5 {
			return fmt.Errorf("%d; failed: %v", len(replies), failed)
		}
		return nil
	})

	frozen := f.processesOn(victim)
	old := map[string]bool{} // whatever of the pair answers, it is one of these
	for _, pid := range frozen {
		old[strconv.Itoa(pid)] = true
	}
	frozen = append(frozen, f.client(victim))
	thaw := func() {
		for _, pid := range frozen {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	}
	t.Cleanup(thaw)
	for _, pid := range frozen {
		require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	}
	began := time.Now()
	var gap time.Duration
	eventually(t, 2*time.Minute, "answers of the replica that was WARM", func() error {
		mu.Lock()
		defer mu.Unlock()
		for _, r := range replies {
			if r.asked.After(began) {
				gap = r.answered.Sub(began)
				return nil
			}
		}
		return fmt.Errorf("%d answers; failed: %v", len(replies), failed)
	})
	r, _, err := f.api.Replica(t.Context(), rests, api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, "serving", r.Status)
	require.Contains(t, f.decisions("k"), "stand-in")
	t.Logf("%d processes of %s frozen: the next answer came %s later", len(frozen), victim, gap.Round(time.Millisecond))

	// listed reports whether Consul lists an engine of the old pair as healthy.
	listed := func() bool {
		engines, err := f.passing("k")
		require.NoError(t, err)
		return slices.ContainsFunc(engines, func(e replica.Engine) bool { return e.Name.String() == serves })
	}
	eventually(t, 20*time.Second, "Consul to have noticed", func() error {
		if listed() {
			return errors.New("the old pair is listed")
		}
		return nil
	})
	unknown := time.Now().Add(time.Second) // the gateway knows it too
	time.Sleep(3 * time.Second)            // requests come meanwhile
	thawed := time.Now()
	known := thawed // the last time at which the old pair was not listed
	thaw()
	for until := time.Now().Add(30 * time.Second); time.Now().Before(until); time.Sleep(time.Millisecond) {
		at := time.Now()
		if listed() {
			break
		}
		known = at
	}
	f.tiers("k", 1, 1, 0)
	_, _, err = f.api.Replica(t.Context(), serves, api.QueryOptions{})
	require.NoError(t, err, "it was not given up")
	cancel()
	wg.Wait() // replies and makers change no more
	within := 0
	for _, r := range replies {
		if r.asked.After(unknown) && r.answered.Before(known) {
			within++
			require.False(t, old[r.maker], "process %s of the old pair has answered a request of %s, %s after its node came back, and is not listed", r.maker, r.asked, r.answered.Sub(thawed))
		}
	}
	require.Positive(t, within)
	t.Logf("the old pair was not listed for %s after its node came back; %d requests answered by others", known.Sub(thawed).Round(time.Millisecond), within)
	t.Logf("%d requests answered by the processes %v; failed: %v", len(replies), makers, failed)
	require.Greater(t, len(makers), 1)
}

// processesOn lists the processes of a node's allocations, by the directory of its Nomad client.
func (f *fleet) processesOn(node string) []int {
	f.t.Helper()
	dir := "nomad"
	if node == secondNode {
		dir = "nomad-2"
	}
	var pids []int
	for _, p := range processesOf(filepath.Join(f.info.DataDir, dir)) {
		text, cmd, _ := strings.Cut(p, " ")
		pid, err := strconv.Atoi(text)
		require.NoError(f.t, err)
		if !strings.Contains(cmd, "nomad agent") {
			pids = append(pids, pid)
		}
	}
	require.NotEmpty(f.t, pids)
	return pids
}
