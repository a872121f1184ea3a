// Package browser drives Debian's Chromium without a window, for tests of web pages. It collects what
// must not happen on any page: errors of scripts, messages in the console and requests to another origin.
package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// Patience is how long a page may take for anything.
const Patience = 60 * time.Second

// Browser is a running Chromium.
type Browser struct {
	t     testing.TB
	ctx   context.Context
	tools string
}

// Start starts a Chromium, which ends with the test. `make chromium clients` installs what it needs.
func Start(t testing.TB) *Browser {
	t.Helper()
	tools := toolsDir(t)
	var b *Browser
	var err error
	for range 3 { // at times Chromium ends as it starts
		if b, err = start(t, tools); err == nil {
			return b
		}
	}
	require.NoError(t, err, "Chromium does not start: run 'make chromium'")
	return nil
}

func start(t testing.TB, tools string) (*Browser, error) {
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(filepath.Join(tools, "bin", "chromium")), chromedp.UserDataDir(t.TempDir()),
		chromedp.NoSandbox, // a container's root has none
		chromedp.Flag("disable-dev-shm-usage", true))
	ctx, stop := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(stop)
	ctx, end := chromedp.NewContext(ctx)
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // It waits for the browser's end.
		end()
	})
	return &Browser{t: t, ctx: ctx, tools: tools}, chromedp.Do(ctx)
}

// toolsDir is .tools of the checkout.
func toolsDir(t testing.TB) string {
	dir, err := os.Getwd()
	require.NoError(t, err)
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, ".tools")
		}
		require.NotEqual(t, "/", dir, "the working directory is in no Go module")
	}
}

// Tab is a tab with its own cookies.
type Tab struct {
	t   testing.TB
	ctx context.Context
	b   *Browser

	mu sync.Mutex
	// problems are what must not happen.
	problems []string
	origins  map[string]bool
	received int64
}

// Tab opens an empty tab.
func (b *Browser) Tab() *Tab {
	b.t.Helper()
	ctx, end := chromedp.NewContext(b.ctx, chromedp.WithNewBrowserContext())
	t := &Tab{t: b.t, ctx: ctx, b: b, origins: map[string]bool{}}
	b.t.Cleanup(end)
	require.NoError(b.t, chromedp.Listen(ctx, t.event))
	return t
}

func (t *Tab) event(ev any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch ev := ev.(type) {
	case *runtime.EventExceptionThrown:
		t.problems = append(t.problems, "exception: "+(&chromedp.ExceptionError{ExceptionDetails: ev.ExceptionDetails}).Error())
	case *runtime.EventConsoleAPICalled:
		var text []string
		for _, a := range ev.Args {
			text = append(text, string(a.Value)+a.Description)
		}
		t.problems = append(t.problems, fmt.Sprintf("console.%s: %s", ev.Type, strings.Join(text, " ")))
	case *log.EventEntryAdded:
		if ev.Entry.Level != log.EntryLevelVerbose {
			t.problems = append(t.problems, fmt.Sprintf("%s: %s %s", ev.Entry.Source, ev.Entry.Text, ev.Entry.URL))
		}
	case *network.EventRequestWillBeSent:
		if u, err := url.Parse(ev.Request.URL); err == nil && u.Scheme != "data" {
			t.origins[u.Scheme+"://"+u.Host] = true
		}
	case *network.EventLoadingFinished:
		t.received += int64(ev.EncodedDataLength)
	}
}

// Problems returns what must not have happened so far, and forgets it.
func (t *Tab) Problems() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := t.problems
	t.problems = nil
	return out
}

// Origins are those that the tab sent requests to.
func (t *Tab) Origins() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []string
	for origin := range t.origins {
		out = append(out, origin)
	}
	slices.Sort(out)
	return out
}

// Received is how many bytes have arrived over the network since the last call.
func (t *Tab) Received() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.received
	t.received = 0
	return n
}

// run takes a step of chromedp.
func run[T any](t *Tab, a chromedp.Action[T]) T {
	t.t.Helper()
	ctx, cancel := context.WithTimeout(t.ctx, Patience)
	defer cancel()
	out, err := chromedp.Run(ctx, a)
	if err != nil {
		require.NoError(t.t, err, "the page: %s", t.text())
	}
	return out
}

// call sends a command of the protocol.
func call[P, R any](t *Tab, cmd cdp.Command[P, R], params P) R {
	t.t.Helper()
	ctx, cancel := context.WithTimeout(t.ctx, Patience)
	defer cancel()
	out, err := chromedp.Call(ctx, cmd, params)
	require.NoError(t.t, err)
	return out
}

// text is the page's, for messages.
func (t *Tab) text() string {
	ctx, cancel := context.WithTimeout(t.ctx, 5*time.Second)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string](`location.href + ": " + document.body.innerText.slice(0, 3000)`))
	if err != nil {
		return err.Error()
	}
	return text
}

// Open goes to an address.
func (t *Tab) Open(address string) {
	t.t.Helper()
	run(t, chromedp.Navigate(address))
}

// Eval runs an expression in the page, and waits for a promise.
func Eval[T any](t *Tab, expression string) T {
	t.t.Helper()
	return run(t, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// Await waits until an expression is true, also on a page that follows by itself.
func (t *Tab) Await(expression string) {
	t.t.Helper()
	ctx, cancel := context.WithTimeout(t.ctx, Patience)
	defer cancel()
	for {
		is, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("Boolean("+expression+")"))
		if err == nil && is {
			return
		}
		select {
		case <-ctx.Done():
			require.FailNow(t.t, "it does not become true", "%s: %v; the page: %s", expression, err, t.text())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// AwaitText waits until the page shows a text.
func (t *Tab) AwaitText(text string) {
	t.t.Helper()
	quoted, err := json.Marshal(text)
	require.NoError(t.t, err)
	t.Await("document.body?.innerText.replace(/\\s+/g, ' ').includes(" + string(quoted) + ")")
}

// Follow clicks an element that leads to another page, and waits for that. It finds and clicks it in one step,
// as a live page replaces its elements.
func (t *Tab) Follow(selector string) {
	t.t.Helper()
	quoted, err := json.Marshal(selector)
	require.NoError(t.t, err)
	element := "document.querySelector(" + string(quoted) + ")"
	t.Await(element + "?.checkVisibility()")
	run(t, chromedp.Action[chromedp.Void](func(ctx context.Context, _ *chromedp.Target) (chromedp.Void, error) {
		_, err := chromedp.RunResponse(ctx, chromedp.Action[chromedp.Void](func(ctx context.Context, target *chromedp.Target) (chromedp.Void, error) {
			_, err := chromedp.Evaluate[bool]("("+element+".click(), true)")(ctx, target)
			return chromedp.Void{}, err
		}))
		return chromedp.Void{}, err
	}))
}

// Click clicks an element.
func (t *Tab) Click(selector string) {
	t.t.Helper()
	run(t, chromedp.Click(chromedp.CSS(selector), chromedp.NodeVisible))
}

// Type types into a field, after what it has.
func (t *Tab) Type(selector, text string) {
	t.t.Helper()
	run(t, chromedp.SendKeys(chromedp.CSS(selector), text, chromedp.NodeVisible))
}

// View sets the width and height of the page and whether it is dark.
func (t *Tab) View(width, height int64, dark bool) {
	t.t.Helper()
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	call(t, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1, Mobile: width < 600})
	call(t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
}

// Shot writes what the page shows into a PNG file.
func (t *Tab) Shot(file string) {
	t.t.Helper()
	require.NoError(t.t, os.WriteFile(file, run(t, chromedp.CaptureScreenshot()), 0o644))
}

// Paint returns when the page that is open first showed something, after its request.
func (t *Tab) Paint() time.Duration {
	t.t.Helper()
	const first = `performance.getEntriesByName("first-contentful-paint")[0]?.startTime`
	t.Await(first)
	return time.Duration(Eval[float64](t, first) * float64(time.Millisecond))
}

// Finding is a rule of accessibility that a page breaks.
type Finding struct {
	ID, Impact, Help string
	Nodes            []struct{ HTML, FailureSummary string }
}

// Accessibility runs axe-core in the page and returns the serious and the critical findings.
func (t *Tab) Accessibility() []Finding {
	t.t.Helper()
	script, err := os.ReadFile(filepath.Join(t.b.tools, "clients", "node_modules", "axe-core", "axe.min.js"))
	require.NoError(t.t, err, "run 'make clients'")
	var found struct{ Violations []Finding }
	raw := Eval[string](t, string(script)+`;axe.run({resultTypes: ["violations"]}).then((r) => JSON.stringify(r))`)
	require.NoError(t.t, json.NewDecoder(bytes.NewReader([]byte(raw))).Decode(&found))
	return slices.DeleteFunc(found.Violations, func(f Finding) bool { return f.Impact != "serious" && f.Impact != "critical" })
}

// Version is Chromium's.
func (b *Browser) Version() string {
	version, err := chromedp.CallBrowser(b.ctx, browser.GetVersion, cdp.Empty{})
	require.NoError(b.t, err)
	return version.Product
}
