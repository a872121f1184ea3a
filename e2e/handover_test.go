//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/internal/devcluster"
	"remuda/jobs"
	"remuda/lockd/engine"
)

// streams are clients that stream answer after answer and note how long each waits for its first
// token.
type streams struct {
	wg     sync.WaitGroup
	cancel context.CancelFunc

	mu      sync.Mutex
	flowing map[int]bool // clients that have had a token
	longest time.Duration
	served  int
	failed  []string
}

func stream(t testing.TB, gateway, model string, clients, tokens int) *streams {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := &streams{cancel: cancel, flowing: map[int]bool{}}
	for c := range clients {
		s.wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				prompt := fmt.Sprintf("client %d stream %d", c, i)
				began, first := time.Now(), true
				got, err := streamChatSeen(context.Background(), gateway, model, prompt, tokens, func(at time.Time) {
					if first {
						first = false
						s.begun(c, at.Sub(began))
					}
				})
				switch want := exact(model, prompt, tokens).Text; {
				case len(got.makers) > 1, err == nil && len(got.makers) == 0:
					t.Errorf("%s: processes %q have made it", prompt, got.makers)
				case err != nil:
					s.ended(fmt.Sprintf("%s: after %s: %v", prompt, time.Since(began).Round(time.Millisecond), err))
					time.Sleep(20 * time.Millisecond)
				case got.text != want:
					t.Errorf("%s: got %q, want %q", prompt, got.text, want)
				default:
					s.ended("")
				}
			}
		})
	}
	t.Cleanup(func() { cancel(); s.wg.Wait() })
	eventually(t, time.Minute, "a token for each client", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if n := len(s.flowing); n < clients {
			return fmt.Errorf("%d of %d; failed: %q", n, clients, last(s.failed, 3))
		}
		return nil
	})
	return s
}

func (s *streams) begun(client int, waited time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flowing[client] = true
	s.longest = max(s.longest, waited)
}

func (s *streams) ended(failure string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if failure != "" {
		s.failed = append(s.failed, failure)
		return
	}
	s.served++
}

// end waits for the streams to end and returns how many were served, the failures, and the longest
// wait for a first token.
func (s *streams) end() (served int, failed []string, longest time.Duration) {
	s.cancel()
	s.wg.Wait()
	return s.served, s.failed, s.longest
}

// TestHandOver: an operator hands a pair over to its standby under 50 streams, and none breaks. A
// drill ends the engine as a crash would.
func TestHandOver(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1, func(o *devcluster.Options) { o.GPUs = 1 })
	w := &twins{f}
	require.NoError(t, os.WriteFile(filepath.Join(f.dir, "failover.nomad.hcl"), []byte(stamped(t, paced(t, jobs.Failover, 50))), 0o600))
	path := filepath.Join(f.dir, "pair.model.hcl")
	require.NoError(t, os.WriteFile(path, []byte(`model "pair" {
  replicas = 1
  max      = 1
  failover = true

  variant "sim" {
    gpu {
      count = 1
    }

    weights = "32MiB"
    memory  = "1GiB"
    cost    = 1
    slots   = 64
    engine  = "sim"
    job     = "failover.nomad.hcl"
    vars    = { weights = "32MiB", slots = "64" }
  }
}
`), 0o600))
	f.remuda("model", "apply", "-detach", path)
	name := f.hot("pair", 1)[0]
	eventually(t, time.Minute, "the standby", func() error { return w.standsBy("pair") })

	const clients, tokens = 50, 40
	for _, drill := range []bool{false, true} {
		s := stream(t, f.info.Gateway, "pair", clients, tokens)
		old := f.engine("pair")
		args := []string{"failover", name, "-timeout", "20s", "-json"}
		if drill {
			args = append(args, "-drill")
		}
		var told api.Failover
		require.NoError(t, json.Unmarshal([]byte(f.remuda(args...)), &told))
		now := f.engine("pair")
		require.Equal(t, []any{old.Role, now.Role, drill}, []any{told.From, told.To, told.Drill})
		require.NotEqual(t, old.Role, now.Role)
		require.Positive(t, now.Token.Compare(old.Token), "token %s after %s", now.Token, old.Token)
		shim := fmt.Sprintf("http://127.0.0.1:%d", port(t, f.allocOf(name), now.Role+"_shim"))
		var st engine.Status
		require.NoError(t, json.Unmarshal([]byte(getBody(t, shim+"/state")), &st))
		require.NotNil(t, st.Takeover)
		cause := engine.CauseHandOver
		if drill {
			cause = engine.CauseDrill
		}
		require.Equal(t, []any{cause, old.Role}, []any{st.Takeover.Cause, st.Takeover.From})
		var first string
		eventually(t, 20*time.Second, "the time to the first token", func() error {
			metrics := getBody(t, shim+"/metrics")
			first = regexp.MustCompile(`(?m)^remuda_engine_takeover_first_token_seconds_(sum|count)\{.*$`).FindString(metrics)
			if !regexp.MustCompile(`(?m)^remuda_engine_takeover_first_token_seconds_count\{cause="` + string(cause) + `",.*\} 1$`).MatchString(metrics) {
				return fmt.Errorf("it is %q", first)
			}
			return nil
		})
		t.Logf("from the end of the old engine it took %.3f s to serve, and to the first token: %s", st.Takeover.Seconds, first)
		eventually(t, time.Minute, "the old engine to stand by", func() error { return w.standsBy("pair") })
		served, failed, longest := s.end()
		t.Logf("drill %t: drained %s, took over in %s; %d streams served, %d broken, the longest waited %s for its first token",
			drill, told.Drained, told.TookOver, served, len(failed), longest.Round(time.Millisecond))
		require.NotZero(t, served)
		if !drill {
			require.Empty(t, failed)
			// Requests of the hand-over wait for the drain and the wake. The rest is for a machine that is busy.
			require.Less(t, longest, time.Duration(told.Drained+2*told.TookOver)+2*time.Second)
		}
		require.Equal(t, []string{name}, f.hot("pair", 1), "it is the same replica")
	}
	// The replica's status has the last failover, and each was a decision.
	var kinds []string
	eventually(t, 20*time.Second, "a decision for each failover", func() error {
		decisions, _, err := f.api.Decisions(t.Context(), api.DecisionFilter{Replica: name}, api.QueryOptions{})
		kinds = nil
		causes := map[string]int{}
		for _, d := range decisions {
			kinds = append(kinds, d.Kind)
			if d.Kind == "failover" {
				causes[d.Details["cause"]]++
			}
		}
		if want := map[string]int{"handover": 1, "drill": 1}; err == nil && !maps.Equal(causes, want) {
			err = fmt.Errorf("they have the causes %v: must be %v; all: %q", causes, want, kinds)
		}
		return err
	})
	// The controller asks the shims each few seconds, so it knows of the standby a moment later.
	var status string
	eventually(t, 20*time.Second, "the standby and the log of the engine that ended in the replica's status", func() error {
		status = f.remuda("replica", "status", name)
		if !regexp.MustCompile(`(?s)Standby\s+= ready.*\nLast lines of the (primary|shadow) before that failover\n.*ended by a drill`).MatchString(status) {
			return fmt.Errorf("status:\n%s", status)
		}
		return nil
	})
	require.Regexp(t, `Last failover\s+= .*\(drill: ended by a drill`, status)
	require.Contains(t, kinds, "failover-ordered")
	t.Logf("decisions, newest first: %q", kinds)
	drilled(t, f, name)
}

// drilled: the periodic job drills the model's pair.
func drilled(t *testing.T, f *fleet, name string) {
	path := filepath.Join(f.dir, "drill.nomad.hcl")
	text, err := fs.ReadFile(jobs.Files, "drill.nomad.hcl")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text, 0o600))
	f.command("nomad", "job", "run", "-detach", "-var", "model=pair", "-var", "remuda="+binary(t, "remuda"), "-var", "controller="+f.info.Controllers[0], path)
	old := f.engine("pair")
	f.command("nomad", "job", "periodic", "force", "-detach", "drill")
	eventually(t, time.Minute, "another engine to serve", func() error {
		if now := f.engine("pair"); now.Role == old.Role {
			return fmt.Errorf("it is the %s, with token %s", now.Role, now.Token)
		}
		return nil
	})
	eventually(t, 20*time.Second, "a decision", func() error {
		decisions, _, err := f.api.Decisions(t.Context(), api.DecisionFilter{Replica: name}, api.QueryOptions{})
		n := 0
		for _, d := range decisions {
			if d.Kind == "failover" && d.Details["cause"] == "drill" {
				n++
			}
		}
		if err == nil && n != 2 {
			err = fmt.Errorf("%d failovers have the cause drill: must be 2", n)
		}
		return err
	})
}
