package server_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/testkit/browser"
)

// envViewer makes the test's program a browser with the pages that it names, separated by spaces.
const envViewer = "REMUDA_TEST_VIEWER"

// view keeps pages open as their script does, until standard input ends. It writes a line when all are open.
func view(addresses []string) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: len(addresses)}}
	open := make(chan bool)
	for _, address := range addresses {
		go func() {
			index, tag := "0", ""
			for {
				req, err := http.NewRequest(http.MethodGet, address, nil)
				if err != nil {
					panic(err)
				}
				req.Header.Set("X-Remuda-Live", index)
				req.Header.Set("If-None-Match", tag)
				resp, err := client.Do(req)
				if err != nil {
					return // The server has ended.
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				if resp.StatusCode >= http.StatusBadRequest {
					panic(resp.Status)
				}
				if tag == "" {
					open <- true
				}
				index, tag = resp.Header.Get("X-Remuda-Index"), resp.Header.Get("ETag")
				time.Sleep(200 * time.Millisecond)
			}
		}()
	}
	for range addresses {
		<-open
	}
	fmt.Println("open")
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// cpu is what this process has used so far.
func cpu(t testing.TB) time.Duration {
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// viewed is the share of a core that the server takes while pages are open.
func (m *member) viewed(paths []string, during time.Duration) float64 {
	var addresses []string
	for _, path := range paths {
		addresses = append(addresses, m.url+path)
	}
	viewer := exec.Command("/proc/self/exe", "-test.run", "^$")
	viewer.Env = append(os.Environ(), envViewer+"="+strings.Join(addresses, " "))
	viewer.Stderr = os.Stderr
	in, err := viewer.StdinPipe()
	require.NoError(m.t, err)
	out, err := viewer.StdoutPipe()
	require.NoError(m.t, err)
	require.NoError(m.t, viewer.Start())
	defer viewer.Wait()
	defer in.Close()
	_, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(m.t, err)
	time.Sleep(time.Second)
	before, began := cpu(m.t), time.Now()
	time.Sleep(during)
	return float64(cpu(m.t)-before) / float64(time.Since(began))
}

// BenchmarkUIAtRest measures the CPU of a server with 20 open pages while nothing changes, less what it
// takes without any, in percent of a core.
func BenchmarkUIAtRest(b *testing.B) {
	const pages, during = 20, 10 * time.Second
	for _, models := range []int{10, 1000} {
		m := cluster(b, 1, settings{free: true})[0]
		m.fleet(models)
		for name, paths := range map[string][]string{"overview": uiLive[:1], "all": uiLive} {
			var open []string
			for i := range pages {
				open = append(open, paths[i%len(paths)])
			}
			b.Run(fmt.Sprintf("models=%d/%s", models, name), func(b *testing.B) {
				for b.Loop() {
					before, began := cpu(b), time.Now()
					time.Sleep(during / 5)
					idle := float64(cpu(b)-before) / float64(time.Since(began))
					b.ReportMetric(100*(m.viewed(open, during)-idle), "%-of-a-core")
				}
			})
		}
	}
}

// BenchmarkUILive makes the live part of each page once, with 1,000 models of 5 replicas: what one viewer
// costs in each second.
func BenchmarkUILive(b *testing.B) {
	m := cluster(b, 1, settings{free: true})[0]
	m.fleet(1000)
	for _, path := range uiLive {
		b.Run(path, func(b *testing.B) {
			for b.Loop() {
				req := httptest.NewRequest(http.MethodGet, path, nil)
				req.Header.Set("X-Remuda-Live", "0")
				w := httptest.NewRecorder()
				m.server.ServeHTTP(w, req)
				require.Equal(b, http.StatusOK, w.Code)
			}
		})
	}
}

// BenchmarkUIPaint opens each page in a browser, with 1,000 models of 5 replicas: the time to its first paint.
func BenchmarkUIPaint(b *testing.B) {
	m := cluster(b, 1, settings{free: true})[0]
	m.fleet(1000)
	tab := browser.Start(b).Tab()
	tab.View(1280, 800, false)
	for _, path := range uiLive {
		b.Run(path, func(b *testing.B) {
			var paint time.Duration
			for b.Loop() {
				tab.Open(m.url + path)
				paint += tab.Paint()
			}
			b.ReportMetric(float64(paint.Milliseconds())/float64(b.N), "ms-to-first-paint")
		})
	}
}

// uiLive are the pages with a live part.
var uiLive = []string{"/ui", "/ui/model?name=team-00%2fmodel-0000", "/ui/nodes", "/ui/decisions", "/ui/usage", "/ui/servers"}
