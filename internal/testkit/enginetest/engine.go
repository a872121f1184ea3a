// Package enginetest is a small inference server with vLLM's surface for tests
// of the shim. It can be told to fail, and to leave processes behind in every
// way that real engines do.
package enginetest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Engine is the server's state; every field is changed over HTTP.
type Engine struct {
	mu       sync.Mutex
	healthy  bool
	asleep   bool
	failWake bool
	// slowWake, slowSleep and slowHealth are how long these take.
	slowWake, slowSleep, slowHealth time.Duration
	// gpus are those of the next wake, as POST /sim/gpus said.
	gpus []string
	// failSleep refuses to sleep; crashSleep says yes and is broken after it.
	failSleep, crashSleep bool
	// badMetrics fails the next scrape; noGauges leaves the gauges out.
	badMetrics, noGauges bool
	running              int
	// tokens is what was generated: one for each scrape while a request runs, none if stalled.
	tokens  int
	stalled bool
	release chan struct{}
}

// Serve runs the engine on addr until the process ends. With mode "loading" it
// starts unhealthy, until POST /test/healthy; with "sleepless" it has no sleep
// mode.
func Serve(addr, model, mode string) error {
	e := &Engine{healthy: mode != "loading", release: make(chan struct{}), gpus: strings.Split(os.Getenv("REMUDA_USE_GPUS"), ",")}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		e.wait(&e.slowHealth)
		e.mu.Lock()
		defer e.mu.Unlock()
		if !e.healthy {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"object":"list","data":[{"id":%q,"object":"model"}]}`, model)
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.badMetrics {
			e.badMetrics = false
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if e.noGauges {
			fmt.Fprintln(w, "python_info 1")
			return
		}
		if e.running > 0 && !e.stalled {
			e.tokens++
		}
		fmt.Fprintf(w, "# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total{model_name=%q,engine=\"0\"} %d\n", model, e.tokens)
		fmt.Fprintf(w, "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name=%q,engine=\"0\"} %d\n"+
			"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{model_name=%q,engine=\"0\"} 0\n", model, e.running, model)
	})
	mux.HandleFunc("GET /is_sleeping", func(w http.ResponseWriter, r *http.Request) {
		if mode == "sleepless" {
			http.NotFound(w, r)
			return
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		fmt.Fprintf(w, `{"is_sleeping":%t}`, e.asleep)
	})
	mux.HandleFunc("POST /sleep", func(w http.ResponseWriter, _ *http.Request) {
		e.wait(&e.slowSleep)
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.failSleep {
			http.Error(w, "CUDA error", http.StatusInternalServerError)
			return
		}
		e.healthy = e.healthy && !e.crashSleep
		if e.running > 0 {
			os.Exit(3) // as real vLLM does (vllm#28714)
		}
		e.asleep = true
	})
	mux.HandleFunc("POST /wake_up", func(w http.ResponseWriter, _ *http.Request) {
		e.wait(&e.slowWake)
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.failWake {
			http.Error(w, "out of memory", http.StatusInternalServerError)
			return
		}
		e.asleep = false
	})
	mux.HandleFunc("POST /sim/gpus", func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		defer e.mu.Unlock()
		var body struct {
			GPUs []string `json:"gpus"`
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if !e.asleep {
			http.Error(w, "awake", http.StatusConflict)
			return
		}
		e.gpus = body.GPUs
	})
	mux.HandleFunc("GET /test/gpus", func(w http.ResponseWriter, _ *http.Request) {
		e.mu.Lock()
		defer e.mu.Unlock()
		fmt.Fprint(w, strings.Join(e.gpus, ","))
	})
	mux.HandleFunc("POST /v1/completions", e.complete)
	mux.HandleFunc("POST /test/{what}", e.control)
	srv := &http.Server{Addr: addr, Handler: guarded(os.Getenv("VLLM_API_KEY"), mux), ReadHeaderTimeout: 5 * time.Second}
	return srv.ListenAndServe()
}

// wait takes as long as *how says.
func (e *Engine) wait(how *time.Duration) {
	e.mu.Lock()
	d := *how
	e.mu.Unlock()
	time.Sleep(d)
}

// complete answers once /test/release is called.
func (e *Engine) complete(w http.ResponseWriter, _ *http.Request) {
	e.mu.Lock()
	e.running++
	release := e.release
	e.mu.Unlock()
	<-release
	e.mu.Lock()
	e.running--
	e.mu.Unlock()
	fmt.Fprint(w, `{"choices":[{"text":"done"}]}`)
}

func (e *Engine) control(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch what := r.PathValue("what"); what {
	case "healthy":
		e.healthy = true
	case "unhealthy":
		e.healthy = false
	case "slow-wake":
		e.slowWake = time.Second
	case "slow-sleep":
		e.slowSleep = time.Second
	case "hang-wake":
		e.slowWake = 24 * time.Hour
	case "stall":
		e.stalled = true
	case "go-on":
		e.stalled = false
	case "hang-health":
		e.slowHealth = 24 * time.Hour
	case "fail-sleep":
		e.failSleep = true
	case "crash-sleep":
		e.crashSleep = true
	case "bad-metrics":
		e.badMetrics = true
	case "no-gauges":
		e.noGauges = true
	case "fail-wake":
		e.failWake = true
	case "release":
		close(e.release)
		e.release = make(chan struct{})
	case "child":
		// A worker process, as tensor-parallel engines have.
		start(w, exec.Command("sleep", "600"), os.Environ())
	case "daemon":
		// A worker in a session of its own whose parent is gone.
		cmd := exec.Command("setsid", "-f", "sleep", "601")
		start(w, cmd, os.Environ())
		_ = cmd.Wait()
	case "nameless":
		// A worker that has lost the environment, too.
		cmd := exec.Command("sh", "-c", "sleep 602 & echo $!")
		cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		line := make([]byte, 16)
		n, _ := out.Read(line)
		_, _ = w.Write(line[:n])
	default:
		http.Error(w, "unknown control "+what, http.StatusNotFound)
	}
}

func start(w http.ResponseWriter, cmd *exec.Cmd, env []string) {
	cmd.Env = env
	if err := cmd.Start(); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	fmt.Fprintln(w, cmd.Process.Pid)
}

// guarded asks for the API key under /v1, as vLLM does; an empty one is none.
func guarded(key string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if key != "" && strings.HasPrefix(r.URL.Path, "/v1") && r.Header.Get("Authorization") != "Bearer "+key {
			http.Error(w, `{"error":"Unauthorized"}`, http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}
