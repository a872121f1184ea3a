package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"remuda/controller/gateway"
	"remuda/internal/replica"
)

const (
	benchRole   = "REMUDA_GATEWAY_BENCH_ROLE"
	benchEngine = "REMUDA_GATEWAY_BENCH_ENGINE"
	benchEvents = 32 // events of one benchmark stream
	benchPace   = 20 * time.Millisecond
	benchProxy  = "reverse proxy"
	// What a request's body has behind max_tokens to be streamed, and slowly.
	benchStream = `,"stream":true`
	benchPaced  = `,"stream":true,"user":"paced"`
)

// benchTarget is what the load is sent to.
type benchTarget struct {
	name, addr string
	// version of a program that is not ours.
	version string
	// pids are its processes without their children, engine those of the engine behind it; empty within this
	// process, and pids where the engine is the target.
	pids, engine []int
	// strict: none of its answers may fail.
	strict bool
}

// startBenchTargets starts the servers. The first target is the engine.
func startBenchTargets(b *testing.B) []*benchTarget {
	b.Helper()
	engine, pids := startBenchRole(b, "engine", "")
	targets := []*benchTarget{{name: "direct", addr: engine, engine: pids, strict: true}}
	for _, role := range []string{benchProxy, "nginx", "haproxy", "gateway"} {
		t := &benchTarget{name: role, engine: pids, strict: role == "gateway"}
		switch role {
		case "nginx", "haproxy":
			if !startBenchPeer(b, t, engine) {
				continue
			}
		default:
			t.addr, t.pids = startBenchRole(b, role, engine)
		}
		targets = append(targets, t)
	}
	return targets
}

// startBenchRole starts one of our servers and returns its address: this test
// binary again, which ends when its standard input closes and so never
// outlives us, or a goroutine.
func startBenchRole(b *testing.B, role, engine string) (addr string, pids []int) {
	b.Helper()
	if *benchOne {
		ctx, stop := context.WithCancel(context.Background())
		addr, done := make(chan string, 1), make(chan error, 1)
		go func() { done <- serveBenchRole(ctx, role, engine, func(a net.Addr) { addr <- a.String() }) }()
		b.Cleanup(func() {
			stop()
			if err := <-done; err != nil {
				b.Errorf("%s: %v", role, err)
			}
		})
		return <-addr, nil
	}
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), benchRole+"="+role, benchEngine+"="+engine)
	if role == "gateway" {
		cmd.Env = append(cmd.Env, "GOMEMLIMIT=448MiB", "GOGC=400") // as jobs/gateway.nomad.hcl does
	}
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		stdin.Close()
		if err := cmd.Wait(); err != nil {
			b.Errorf("%s: %v", role, err)
		}
	})
	addr, err = bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		b.Fatalf("%s does not start: %v", role, err)
	}
	return strings.TrimSpace(addr), []int{cmd.Process.Pid}
}

// runBenchRole is main of such a process.
func runBenchRole(role string) int {
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	if err := serveBenchRole(ctx, role, os.Getenv(benchEngine), func(a net.Addr) { fmt.Println(a) }); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", role, err)
		return 1
	}
	return 0
}

func serveBenchRole(ctx context.Context, role, engine string, listening func(net.Addr)) error {
	switch role {
	case "engine":
		return serveBench(ctx, http.HandlerFunc(benchAnswer), listening)
	case benchProxy:
		transport := &http.Transport{MaxIdleConnsPerHost: 4096, DisableCompression: true}
		defer transport.CloseIdleConnections()
		return serveBench(ctx, &httputil.ReverseProxy{
			Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: engine}) },
			Transport:     transport,
			FlushInterval: -1,
			ErrorLog:      log.New(io.Discard, "", 0),
		}, listening)
	default:
		e := engineAt("a", engine)
		e.Slots = 4096 // nobody waits for one: what is measured is the way, not the queue
		cfg := gateway.DefaultConfig()
		cfg.Listen, cfg.OperatorListen = "127.0.0.1:0", "127.0.0.1:0"
		cfg.Watcher = fixed{e}
		cfg.OnListen = func(clients, operators net.Addr) { listening(clients); listening(operators) }
		everyFeature(&cfg)
		g, err := gateway.New(cfg)
		if err != nil {
			return err
		}
		return g.Run(ctx)
	}
}

// everyFeature switches on what a gateway can do to a request and does not do by default.
func everyFeature(c *gateway.Config) {
	c.AccessLog.Path = os.DevNull
	c.Limits.Buffered = 4 << 30 // the load comes from one address, whose share must hold all bodies
	// A receiver that is not there: spans are made and lost, for the share that is traced.
	c.Tracing.Endpoint, c.Tracing.Ratio = "http://127.0.0.1:9", 0.01
	// No engine has a slot less than clients have connections, or the queue would be measured.
	c.Keys.Default.Rate, c.Keys.Default.Burst, c.Keys.Default.Concurrency = 1e6, 1e6, 1e6
}

// fixed is a Watcher with one list.
type fixed []replica.Engine

func (w fixed) Watch(ctx context.Context, update func([]replica.Engine, bool), lost func()) error {
	update(w, false)
	<-ctx.Done()
	return ctx.Err()
}

func serveBench(ctx context.Context, h http.Handler, listening func(net.Addr)) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	listening(l.Addr())
	s := &http.Server{Handler: h}
	defer context.AfterFunc(ctx, func() { s.Close() })()
	if err := s.Serve(l); err != http.ErrServerClosed {
		return err
	}
	return nil
}

var (
	benchWhole = []byte(`{"id":"chatcmpl-0123456789","object":"chat.completion","created":1700000000,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Hello!"},"finish_reason":"stop"}],"usage":{"prompt_tokens":4,"completion_tokens":2,"total_tokens":6}}`)
	// An event's ID is when it was written: nanoseconds since 1970, benchDigits of them.
	benchStamp = []byte(`data: {"id":"chatcmpl-`)
	benchUsage = []byte("data: {\"id\":\"usage\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":32,\"total_tokens\":36}}\n\n")
	benchEvent = []byte("\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hello\"},\"finish_reason\":null}]}\n\n")
)

const benchDigits = 19

// benchAnswer is an engine that answers at once, or paced where it is asked to.
func benchAnswer(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	end := body[max(0, len(body)-256):] // a gateway may have added something
	if !bytes.Contains(end, []byte(benchStream)) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(benchWhole)
		return
	}
	var tick <-chan time.Time
	if bytes.Contains(end, []byte(benchPaced)) {
		ticker := time.NewTicker(benchPace)
		defer ticker.Stop()
		tick = ticker.C
	}
	w.Header().Set("Content-Type", "text/event-stream")
	rc := http.NewResponseController(w)
	event := make([]byte, 0, len(benchStamp)+benchDigits+len(benchEvent))
	for range benchEvents {
		if tick != nil {
			select {
			case <-tick:
			case <-r.Context().Done():
				return
			}
		}
		event = strconv.AppendInt(append(event[:0], benchStamp...), time.Now().UnixNano(), 10)
		_, _ = w.Write(append(event, benchEvent...))
		_ = rc.Flush()
	}
	if bytes.Contains(end, []byte(`"include_usage":true`)) {
		_, _ = w.Write(benchUsage)
	}
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}
