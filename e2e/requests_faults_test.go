//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
)

// fault is something that happens to the cluster.
type fault struct {
	name   string
	strike func()
}

// suffer lets a fault strike, and waits until all replicas are back and clients have gone
// on for a while.
func (r *requests) suffer(x fault) {
	r.t.Helper()
	before, at := map[string]tally{}, time.Now()
	for m := range r.traffic.tallies {
		before[m] = r.traffic.seen(m)
	}
	answered := r.traffic.answered.Load()
	x.strike()
	r.hot(pairModel, pairReplicas)
	r.hot(chainModel, chainReplicas)
	r.traffic.flows(400)
	line := fmt.Sprintf("%s: %d requests in %s", x.name, r.traffic.answered.Load()-answered, time.Since(at).Round(100*time.Millisecond))
	for _, m := range []string{pairModel, chainModel} {
		was, is := before[m], r.traffic.seen(m)
		line += fmt.Sprintf("; %s: %d unanswered, %d+%d broken, %d wrong, %d lost, %d sent again", m, is.ended[unanswered]-was.ended[unanswered],
			is.ended[brokenLoudly]-was.ended[brokenLoudly], is.ended[brokenSilently]-was.ended[brokenSilently], is.ended[wrong]-was.ended[wrong],
			is.lost-was.lost, is.reconnected-was.reconnected)
	}
	r.t.Log(line)
}

// serving returns the process of the engine that serves for each replica of the models.
func (r *requests) serving(models ...string) map[string]int {
	r.t.Helper()
	var out map[string]int
	eventually(r.t, 20*time.Second, "the engines that serve", func() (err error) {
		out, err = r.tryServing(models...)
		return err
	})
	return out
}

func (r *requests) tryServing(models ...string) (map[string]int, error) {
	out := map[string]int{}
	for _, m := range models {
		engines, err := r.passing(m)
		if err != nil {
			return nil, err
		}
		for _, e := range engines {
			name := e.Name.String()
			for _, pid := range processesOfReplica(r.t, name, "sim") {
				raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				if bytes.Contains(raw, []byte("\x00"+e.HostPort()+"\x00")) {
					out[name] = pid
				}
			}
			if out[name] == 0 {
				return nil, fmt.Errorf("no process is the engine of %s at %s", name, e.HostPort())
			}
			if _, err := fetch("http://" + e.HostPort() + "/health"); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// oneOf returns a replica of each model, and the process of its engine.
func (r *requests) oneOf() map[string]int {
	r.t.Helper()
	out := map[string]int{}
	for _, m := range []string{pairModel, chainModel} {
		for name, pid := range r.serving(m) {
			out[name] = pid
			break
		}
	}
	return out
}

func (r *requests) killEngines() { r.killed(r.oneOf(), func(pid int) int { return pid }) }

func (r *requests) killShims() {
	r.killed(r.oneOf(), func(pid int) int { return parent(r.t, pid) })
}

func (r *requests) killAllEngines() {
	r.killed(r.serving(pairModel, chainModel), func(pid int) int { return pid })
}

// killed kills the engines of these replicas, or what victim says, and waits until others
// serve in their place.
func (r *requests) killed(engines map[string]int, victim func(pid int) int) {
	r.t.Helper()
	var victims []int
	for _, pid := range engines {
		victims = append(victims, victim(pid))
	}
	kill9(r.t, victims...)
	r.replaced(engines)
}

// replaced waits until other processes serve for these replicas.
func (r *requests) replaced(engines map[string]int) {
	r.t.Helper()
	eventually(r.t, time.Minute, "other engines to serve", func() error {
		now, err := r.tryServing(pairModel, chainModel)
		if err != nil {
			return err
		}
		for name, pid := range engines {
			if now[name] == 0 || now[name] == pid {
				return fmt.Errorf("the engine of %s is process %d, was %d", name, now[name], pid)
			}
		}
		return nil
	})
}

// killAllocations kills all that an allocation consists of: tasks, what they started, and
// Nomad's executors.
func (r *requests) killAllocations() {
	engines := r.oneOf()
	for name := range engines {
		model, _, _ := strings.Cut(name, ":")
		ids, _ := r.allocations(model)
		require.NotEmpty(r.t, ids[name])
		var pids []int
		for _, p := range processesOf(r.info.DataDir) {
			number, command, _ := strings.Cut(p, " ")
			environ, _ := os.ReadFile("/proc/" + number + "/environ")
			if !strings.Contains(command, ids[name]) && !bytes.Contains(environ, []byte("NOMAD_ALLOC_ID="+ids[name]+"\x00")) {
				continue
			}
			pid, err := strconv.Atoi(number)
			require.NoError(r.t, err)
			pids = append(pids, pid)
		}
		require.Greater(r.t, len(pids), 2, "processes of %s", ids[name])
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL) // some go with others
		}
	}
	r.replaced(engines)
}

func (r *requests) killConsul() {
	require.NoError(r.t, r.cluster.End("consul", syscall.SIGKILL))
	require.NoError(r.t, r.cluster.Start("consul"))
	eventually(r.t, time.Minute, "Consul to answer again", func() error {
		_, err := r.passing(chainModel)
		return err
	})
}

// chainVars are the variables of chainModel since its last update.
func (r *requests) chainVars() map[string]string { return map[string]string{"weights": "48MiB"} }

func (r *requests) rollingUpdate() {
	before := r.hot(chainModel, chainReplicas)
	r.remuda("model", "apply", r.model(chainModel, r.chainVars(), true))
	for _, name := range r.hot(chainModel, chainReplicas) {
		require.NotContains(r.t, before, name)
	}
}

func (r *requests) failedUpdate() {
	before := r.hot(pairModel, pairReplicas)
	out, err := r.tryRemuda("model", "apply", r.model(pairModel, map[string]string{"weights": "48MiB", "remuda": "/nonexistent/remuda"}, false))
	require.Error(r.t, err, "the command tells that the rollout failed:\n%s", out)
	eventually(r.t, 2*time.Minute, "the rollback", func() error {
		st, _, err := r.api.Model(r.t.Context(), pairModel, api.QueryOptions{})
		if err == nil && st.Model.Rollouts["sim"].Status != "rolled_back" {
			err = fmt.Errorf("%+v", st.Model.Rollouts)
		}
		return err
	})
	// What works is put back, so that its replicas are what their variant says.
	r.remuda("model", "apply", r.model(pairModel, nil, false))
	require.Equal(r.t, before, r.hot(pairModel, pairReplicas))
}

// enginesAtRest waits until no engine works on a request whose client has left. No engine ever had more
// requests than slots, apart from a few that were just cancelled: a gateway reuses a slot as soon as it
// closes the connection, and the engine notices that a moment later, on a busy machine several of them.
func (r *requests) enginesAtRest() {
	r.t.Helper()
	for m, slots := range map[string]int{pairModel: pairSlots, chainModel: chainSlots} {
		engines, err := r.passing(m)
		require.NoError(r.t, err)
		for _, e := range engines {
			body, err := fetch("http://" + e.HostPort() + "/sim/counters")
			require.NoError(r.t, err)
			var c struct {
				Most int `json:"most_in_flight"`
			}
			require.NoError(r.t, json.Unmarshal([]byte(body), &c))
			r.t.Logf("%s had %d requests at once", e.ID(), c.Most)
			// Those of a gateway that was killed are there until the engine sees that, beside its
			// successor's. Without shares each gateway would send as many as there are slots.
			require.Less(r.t, c.Most, 2*slots)
			eventually(r.t, 10*time.Second, e.ID()+" to be at rest", func() error {
				body, err := fetch("http://" + e.HostPort() + "/metrics")
				if err != nil {
					return err
				}
				for _, metric := range []string{"vllm:num_requests_running", "vllm:num_requests_waiting"} {
					samples := linesWith(body, metric)
					if len(samples) == 0 {
						return fmt.Errorf("it has no %s", metric)
					}
					for sample, value := range samples {
						if n, err := strconv.ParseFloat(value, 64); err != nil || n != 0 {
							return fmt.Errorf("%s is %s", sample, value)
						}
					}
				}
				return nil
			})
		}
	}
}
