package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"remuda/controller/gateway"
	"remuda/internal/replica"
	"remuda/internal/sim"
	"remuda/internal/sim/engine"
	simtext "remuda/internal/sim/text"
)

// Sizes of BenchmarkPrefix: each application has a prompt of its own that all of its requests begin
// with, of about prefixWords tokens.
const (
	prefixWords       = 1000
	prefixApps        = 8   // per engine
	prefixRequests    = 320 // per engine
	unsharedRequests  = 40  // per engine
	prefixConcurrency = 3   // requests at a time per engine
	prefixSlots       = 16  // of an engine
)

// BenchmarkPrefix has gateways send requests with shared beginnings to simulated engines, whose caches
// hold a third more than their part of all beginnings. hit/oracle is the rate of cached tokens beside
// the best that there can be: each beginning is computed once. The first token's time is beside that of
// the same requests with nothing shared.
func BenchmarkPrefix(b *testing.B) {
	for _, engines := range []int{4, 16, 64} {
		for _, gateways := range []int{1, 2, 4} {
			b.Run(fmt.Sprintf("engines=%d/gateways=%d", engines, gateways), func(b *testing.B) {
				for b.Loop() {
					hit, oracle, first := prefixRun(b, engines, gateways, prefixRequests*engines, true)
					_, _, alone := prefixRun(b, engines, gateways, unsharedRequests*engines, false)
					b.ReportMetric(hit, "hit")
					b.ReportMetric(hit/oracle, "hit/oracle")
					b.ReportMetric(float64(first)/1e6, "ms-first-p50")
					b.ReportMetric(float64(alone)/1e6, "ms-first-p50-unshared")
				}
			})
		}
	}
}

// prefixRun returns the rate of cached tokens, the best one, and the median time to the first token.
func prefixRun(b *testing.B, engines, gateways, requests int, shared bool) (hit, oracle float64, first time.Duration) {
	b.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	list := make(fixed, engines)
	for i := range list {
		list[i] = prefixEngine(b, ctx, &running, i)
	}
	addrs := make([]string, gateways)
	for i := range addrs {
		cfg := gateway.DefaultConfig()
		cfg.Listen, cfg.OperatorListen, cfg.Watcher = "127.0.0.1:0", "127.0.0.1:0", list
		listening := make(chan string, 1)
		cfg.OnListen = func(a, _ net.Addr) { listening <- a.String() }
		g, err := gateway.New(cfg)
		if err != nil {
			b.Fatal(err)
		}
		running.Go(func() {
			if err := g.Run(ctx); err != nil {
				b.Error(err)
			}
		})
		addrs[i] = <-listening
	}

	apps := prefixApps * engines
	chance := rand.New(rand.NewPCG(1, 2))
	order := make([]int, requests)
	for i := range order {
		order[i] = chance.IntN(apps)
	}
	next := make(chan int)
	took := make([]time.Duration, requests)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024}}
	defer client.CloseIdleConnections()
	var clients sync.WaitGroup
	for range prefixConcurrency * engines {
		clients.Go(func() {
			for i := range next {
				app := strconv.Itoa(order[i])
				if !shared {
					app = "request" + strconv.Itoa(i)
				}
				began := time.Now()
				resp, err := client.Post("http://"+addrs[i%gateways]+chat, "application/json", prefixBody(app, i))
				if err != nil {
					b.Error(err)
					return
				}
				one := make([]byte, 1)
				_, err = io.ReadFull(resp.Body, one)
				took[i] = time.Since(began)
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if err != nil || resp.StatusCode != http.StatusOK {
					b.Errorf("request %d: %d %v", i, resp.StatusCode, err)
				}
			}
		})
	}
	for i := range requests {
		next <- i
	}
	close(next)
	clients.Wait()

	var prompt, cached int64
	for _, e := range list {
		resp, err := client.Get("http://" + e.HostPort() + "/sim/counters")
		if err != nil {
			b.Fatal(err)
		}
		var c struct {
			Total struct {
				Prompt int64 `json:"prompt_tokens"`
				Cached int64 `json:"cached_tokens"`
			} `json:"total"`
		}
		err = json.NewDecoder(resp.Body).Decode(&c)
		resp.Body.Close()
		if err != nil {
			b.Fatal(err)
		}
		prompt, cached = prompt+c.Total.Prompt, cached+c.Total.Cached
	}
	used := slices.Clone(order)
	slices.Sort(used)
	repeated := requests - len(slices.Compact(used))
	oracle = float64(repeated) * float64(prefixTokens()) / float64(prompt)
	slices.Sort(took)
	return float64(cached) / float64(prompt), oracle, took[len(took)/2]
}

// prefixBody is a chat of an application, with a question of its own.
func prefixBody(app string, n int) io.Reader {
	return strings.NewReader(fmt.Sprintf(`{"model":"m","stream":true,"max_tokens":4,"messages":[{"role":"system","content":%q},{"role":"user","content":"question %d"}]}`,
		prefixOf(app), n))
}

// prefixOf is what all requests of an application begin with.
func prefixOf(app string) string { return app + strings.Repeat(" you answer questions", prefixWords/3) }

// prefixTokens is how many tokens of a beginning whole blocks of a cache can hold.
func prefixTokens() int {
	n := simtext.Count(simtext.Render([]simtext.Message{{Role: "system", Content: prefixOf("10")}}, false, false))
	return n / sim.DefaultConfig().BlockSize * sim.DefaultConfig().BlockSize
}

func prefixEngine(b *testing.B, ctx context.Context, running *sync.WaitGroup, i int) replica.Engine {
	b.Helper()
	cfg := sim.DefaultConfig()
	cfg.Model, cfg.Version, cfg.Logger, cfg.Exit = "m", "1", hclog.NewNullLogger(), func(int) {}
	cfg.Rates = engine.Rates{Prefill: 16000, Decode: 1000}
	cfg.MaxNumSeqs = prefixSlots
	perPrompt := prefixTokens()
	cfg.NumGPUBlocks = perPrompt/cfg.BlockSize*prefixApps*4/3 + cfg.MaxNumSeqs*(perPrompt/cfg.BlockSize+2)
	cfg.MaxModelLen = 2 * perPrompt
	server, err := sim.New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	running.Go(func() { _ = server.Run(ctx, ln) })
	at := ln.Addr().(*net.TCPAddr)
	id := fmt.Sprintf("00000000-0000-4000-8000-%012d", i)
	return replica.Engine{Name: replica.Name{Model: "m", Variant: "v", ID: id}, Role: replica.RolePrimary, Address: "127.0.0.1", Port: at.Port, Slots: cfg.MaxNumSeqs, Passing: true}
}
