package reconcile_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	nomadapi "github.com/hashicorp/nomad/api"
	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/reconcile"
	"remuda/controller/shimclient"
	"remuda/controller/state"
	"remuda/internal/replica"
	"remuda/internal/testkit/nomadtest"
	"remuda/internal/testkit/shimtest"
)

// tiered is a cluster with one replica, whose shim serves HTTP and whose engine's memory
// is on a GPU while it does not sleep.
type tiered struct {
	*cluster
	name string
	shim *shimtest.Shim
	held int64 // MiB that stay in use on its GPU, whatever it does
}

func newTiered(t *testing.T) *tiered {
	c := &tiered{cluster: newClusterOf(t, func(cfg *reconcile.Config) {
		cfg.Planner.MemoryTimeout, cfg.Planner.MemorySettle = time.Second, 100*time.Millisecond
		cfg.Planner.MinAge, cfg.Planner.TierGrace, cfg.Planner.SettleTime = 0, 0, 10*time.Millisecond
	})}
	served := c.shimServer()
	c.model(1)
	c.run(1)
	r := c.replicas()[0]
	c.name = r.Name.String()
	c.shim = shimtest.New(c.name, replica.RolePrimary, false)
	c.shim.Admit(c.isSecret) // after restarts of the controller, too
	served.Store(c.shim)
	c.serves = func() bool { return c.shim.State().Phase == shimclient.Active }
	for _, node := range []string{"node-1", "node-2"} {
		c.nomad.SetMemory(node, func() []nomadtest.GPU { return c.memory(node) })
	}
	return c
}

// isSecret is what a shim decides from the environment that its job gives it.
func (c *tiered) isSecret(secret string) bool {
	job := c.nomad.Job(c.name)
	if job == nil {
		return false
	}
	key, err := base64.RawURLEncoding.DecodeString(job.TaskGroups[0].Tasks[0].Env["REMUDA_CONTROLLER_KEY"])
	return err == nil && len(key) == ed25519.PublicKeySize && replica.IsSecret(key, c.name, secret)
}

// shimServer serves one shim over HTTP, once there is one. Its address is in each allocation
// from its beginning, as Nomad has it.
func (c *cluster) shimServer() *atomic.Pointer[shimtest.Shim] {
	var served atomic.Pointer[shimtest.Shim]
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s := served.Load(); s != nil {
			s.ServeHTTP(w, r)
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	c.t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	host, port, _ := strings.Cut(strings.TrimPrefix(srv.URL, "http://"), ":")
	var number int
	_, err := fmt.Sscan(port, &number)
	require.NoError(c.t, err)
	c.ports = []nomadapi.PortMapping{{Label: "shim", HostIP: host, Value: number}}
	return &served
}

// memory is what the device plugin of a node sees.
func (c *tiered) memory(node string) []nomadtest.GPU {
	var out []nomadtest.GPU
	for gpu := range 2 {
		g := nomadtest.GPU{UUID: fmt.Sprintf("%s-GPU%d", node, gpu), UsedMiB: 300, At: time.Now()}
		for _, r := range c.raft.Store().View().Replicas(nil) {
			if _, uses := r.Placement.Memory[g.UUID]; uses && r.Name.String() == c.name {
				g.UsedMiB += c.held
				if c.shim.State().Phase != shimclient.Standby {
					g.UsedMiB += 20 << 10
				}
			}
		}
		out = append(out, g)
	}
	return out
}

func (c *tiered) stage() string {
	r := c.raft.Store().View().Replica(nil, c.name)
	if r == nil {
		return ""
	}
	return string(r.Status)
}

// becomes waits until the replica is at a stage.
func (c *tiered) becomes(stages ...string) {
	c.t.Helper()
	c.until(c.name+" is "+strings.Join(stages, " or "), func() bool {
		c.work()
		for _, s := range stages {
			if c.stage() == s {
				return true
			}
		}
		return false
	})
}

func (c *tiered) evict(to state.Goal) {
	c.t.Helper()
	c.apply(&state.EvictRequest{Replica: c.name, To: to, Time: time.Now()})
}

// restart has another controller lead, with what the first has written.
func (c *tiered) restart() {
	c.close()
	c.open()
}

func TestTiersWithRealRaftAndHTTP(t *testing.T) {
	c := newTiered(t)
	job := c.count("PUT /v1/jobs")
	c.evict(state.GoalWarm)
	c.becomes("warm")
	r := c.raft.Store().View().Replica(nil, c.name)
	require.EqualValues(t, 300<<20, c.raft.Store().View().Usage(nil, r.Placement.Node).Memory[mainGPU(r)], "as measured")
	c.rest()
	require.Equal(t, job, c.count("PUT /v1/jobs"), "its job is not written again")

	c.sub("a new controller leaves it alone", func(*testing.T) {
		c.restart()
		c.rest()
		require.Equal(t, "warm", c.stage())
	})
	c.sub("it is woken when it counts again", func(*testing.T) {
		c.scale(1)
		c.becomes("serving")
		require.Equal(t, []string{mainGPU(r)}, c.shim.GPUs())
		require.Len(t, c.replicas(), 1, "and nothing else was placed")
		c.rest()
	})
	c.sub("the controller changes in the middle of its sleep", func(*testing.T) {
		begun, goOn := make(chan struct{}), make(chan struct{})
		c.shim.OnSleep(func() shimtest.Answer {
			c.shim.OnSleep(nil)
			close(begun)
			<-goOn
			return shimtest.Answer{}
		})
		c.evict(state.GoalWarm)
		<-begun
		c.close()
		close(goOn)
		c.open()
		c.becomes("warm")
	})
	c.sub("the controller changes in the middle of its wake", func(*testing.T) {
		begun, goOn := make(chan struct{}), make(chan struct{})
		c.shim.OnWake(func() shimtest.Answer {
			c.shim.OnWake(nil)
			close(begun)
			<-goOn
			return shimtest.Answer{}
		})
		c.scale(1)
		<-begun
		c.close()
		close(goOn)
		c.open()
		c.becomes("serving")
		require.Len(t, c.replicas(), 1)
	})
}

func mainGPU(r *state.Replica) string {
	for uuid := range r.Placement.Memory {
		return uuid
	}
	return ""
}

func TestMemoryThatDoesNotReturn(t *testing.T) {
	c := newTiered(t)
	gpu := mainGPU(c.raft.Store().View().Replica(nil, c.name))
	node := c.raft.Store().View().Replica(nil, c.name).Placement.Node
	c.held = 11 << 10 // of 20 GiB
	c.evict(state.GoalWarm)
	c.until("its GPU is cordoned", func() bool {
		c.work()
		g := c.raft.Store().View().Node(nil, node).GPU(gpu)
		return g != nil && g.Cordoned && g.CordonReason != ""
	})
	c.becomes("cold", "") // and nothing of it is left on the GPU
}

func TestASleepThatFails(t *testing.T) {
	c := newTiered(t)
	c.shim.OnSleep(func() shimtest.Answer {
		return shimtest.Answer{Code: http.StatusInternalServerError, Error: "put the engine to sleep: CUDA error", State: shimclient.Dead}
	})
	c.evict(state.GoalWarm)
	c.becomes("cold", "")
}

func TestARequestAtTheLastMomentCallsASleepOff(t *testing.T) {
	c := newTiered(t)
	c.shim.OnSleep(func() shimtest.Answer {
		return shimtest.Answer{Code: http.StatusGatewayTimeout, Error: "not drained within 1s: 1 requests run", State: shimclient.Draining}
	})
	c.evict(state.GoalWarm)
	c.until("it was called off", func() bool { return len(c.shim.Orders()) == 2 })
	require.Equal(t, []string{"sleep", "wake"}, c.shim.Orders())
	c.becomes("serving")
}

func TestAWakeThatFails(t *testing.T) {
	c := newTiered(t)
	c.evict(state.GoalWarm)
	c.becomes("warm")
	first := c.name
	c.shim.OnWake(func() shimtest.Answer {
		return shimtest.Answer{Code: http.StatusInternalServerError, Error: "wake failed", State: shimclient.Dead}
	})
	c.scale(1)
	c.serves = func() bool { return true } // the next one is fine
	c.until("another one serves", func() bool {
		c.work()
		for _, r := range c.replicas() {
			if r.Name.String() != first && r.Status == "serving" {
				return true
			}
		}
		return false
	})
}

func TestDemandWakes(t *testing.T) {
	c := newTiered(t)
	c.evict(state.GoalWarm)
	c.becomes("warm")
	began := time.Now()
	c.loads.Put(api.GatewayReport{Gateway: "g", Index: c.raft.Store().View().Index(), Since: time.Now(), Demand: map[string]time.Time{"m": time.Now()}})
	c.becomes("serving")
	t.Logf("woken %s after the report", time.Since(began))
}
