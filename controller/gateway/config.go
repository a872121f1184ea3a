package gateway

import (
	"context"
	"math"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"remuda/controller/gateway/dispatch"
	"remuda/internal/hclfault"
	"remuda/internal/replica"
)

// Watcher reports the engines that Consul knows.
type Watcher interface {
	// Watch calls update with the complete list of engines, passing or not, at
	// first and after each change, until ctx ends. When Consul can no longer be
	// reached it calls lost and keeps trying; the first list after such a time
	// has afterOutage set. Both are called from one goroutine.
	Watch(ctx context.Context, update func(engines []replica.Engine, afterOutage bool), lost func()) error
}

// Config is everything a Gateway needs. Start from DefaultConfig.
type Config struct {
	// Listen is the "host:port" that clients connect to.
	Listen string `hcl:"listen"`
	// Advertise is the URL at which the controller reaches that port, for the chat of its web page. Empty
	// means the address that listens. With TLS, set it to a name that the certificate bears.
	Advertise string `hcl:"advertise"`
	// OperatorListen is the "host:port" of the operators' port: /metrics, /live and /ready.
	OperatorListen string `hcl:"operator_listen"`
	// LogLevel is trace, debug, info, warn or error. The program that builds
	// the logger applies it.
	LogLevel string `hcl:"log_level"`
	// RetryAfter is what a client is told to wait when no engine can take its
	// request. It is rounded up to whole seconds.
	RetryAfter time.Duration `hcl:"retry_after"`

	TLS        TLS        `hcl:"tls,block"`
	EngineTLS  EngineTLS  `hcl:"engine_tls,block"`
	CORS       CORS       `hcl:"cors,block"`
	Consul     Consul     `hcl:"consul,block"`
	Controller Controller `hcl:"controller,block"`
	Timeouts   Timeouts   `hcl:"timeouts,block"`
	Limits     Limits     `hcl:"limits,block"`
	Routing    Routing    `hcl:"routing,block"`
	Queue      Queue      `hcl:"queue,block"`
	Retries    Retries    `hcl:"retries,block"`
	Keys       Keys       `hcl:"keys,block"`
	// NamedKeys are the known keys.
	NamedKeys []Key     `hcl:"key,block"`
	AccessLog AccessLog `hcl:"access_log,block"`
	Tracing   Tracing   `hcl:"tracing,block"`

	// Watcher reports the engines. Required.
	Watcher Watcher
	// Logger may be nil.
	Logger hclog.Logger
	// OnListen, if not nil, is called once with the addresses in use, before the
	// first request is served.
	OnListen func(clients, operators net.Addr)
}

// Consul says where the engines are found and how the gateway appears there. The
// program that builds the Watcher applies it.
type Consul struct {
	// Service is the name under which the gateway registers itself. Empty means
	// that it does not.
	Service string `hcl:"service"`
	// Address is "host:port" or a URL of the local Consul agent. Empty means
	// CONSUL_HTTP_ADDR, or 127.0.0.1:8500 without that.
	Address string `hcl:"address"`
	// Token is the ACL token. Empty means CONSUL_HTTP_TOKEN, if set.
	Token string `hcl:"token"`
}

// TLS is for the clients' port: HTTP/1.1 and HTTP/2 with TLS 1.2 or later.
type TLS struct {
	// Cert is a PEM file with the certificate, followed by those that lead to its CA. Empty means
	// that there is no TLS. The file is read again when it or the key changes, and at SIGHUP.
	Cert string `hcl:"cert"`
	// Key is a PEM file with the private key of the certificate.
	Key string `hcl:"key"`
}

func (t TLS) on() bool { return t.Cert != "" }

// Controller says where the controller is. The gateway serves without one.
type Controller struct {
	// Addresses are the URLs of its servers; any of them will do. Empty means that
	// there is none.
	Addresses []string `hcl:"addresses"`
	// Token is of the role gateway. Empty means REMUDA_TOKEN, if set.
	Token string `hcl:"token"`
	// CACert is a PEM file with the CA of the servers' certificates. Empty means
	// REMUDA_CACERT, or the system's without that.
	CACert string `hcl:"ca_cert"`
}

// Timeouts bound every wait of a request separately. There is no total
// timeout: an answer may take as long as it makes progress.
type Timeouts struct {
	// Header bounds reading a request's header, with the TLS handshake before a connection's first.
	Header time.Duration `hcl:"header"`
	// Body bounds reading a request's whole body, counted from the end of the
	// header, so that a client that sends a byte now and then is refused too.
	Body time.Duration `hcl:"body"`
	// KeepAlive closes client connections that are idle for so long.
	KeepAlive time.Duration `hcl:"keep_alive"`
	// Write bounds how long one write to a client may be stuck: a client that
	// stops reading must not hold an engine's slot for ever.
	Write time.Duration `hcl:"write"`
	// Connect bounds a TCP connection to an engine.
	Connect time.Duration `hcl:"connect"`
	// FirstByte bounds the time from handing a request to an engine to the
	// first byte of the answer's body.
	FirstByte time.Duration `hcl:"first_byte"`
	// StreamIdle bounds the time between two reads of an answer.
	StreamIdle time.Duration `hcl:"stream_idle"`
	// EngineIdle closes connections to engines that are idle for so long.
	EngineIdle time.Duration `hcl:"engine_idle"`
	// LameDuck is how long a stopping gateway keeps accepting requests while
	// /ready already answers 503.
	LameDuck time.Duration `hcl:"lame_duck"`
	// Drain is how long a stopping gateway lets running requests finish.
	Drain time.Duration `hcl:"drain"`
}

// Limits bound the memory that clients can make the gateway use.
type Limits struct {
	// Body is the largest request body in bytes.
	Body int64 `hcl:"body,size"`
	// Header is the largest request header in bytes.
	Header int64 `hcl:"header,size"`
	// Buffered is how many bytes of request bodies may be held in all. One known key, or one address
	// without a known key (of IPv6: its /64), may hold a quarter, or twice limits.body if that is more.
	Buffered int64 `hcl:"buffered,size"`
}

// Routing tunes the choice of engines; see the package balance.
type Routing struct {
	// Grace is how long engines that were active before a Consul outage are
	// used on although Consul does not vouch for them yet.
	Grace time.Duration `hcl:"grace"`
	// Suspect is how long an engine gets no request after it failed. It doubles with
	// each probe that fails, up to SuspectMax.
	Suspect time.Duration `hcl:"suspect"`
	// SuspectMax is the longest time without a request after failures.
	SuspectMax time.Duration `hcl:"suspect_max"`
	// ImbalanceFactor and ImbalanceSlack (tokens) bound how much more work an engine may
	// have per slot than the least busy one and still draw the requests whose prompts
	// begin as those that it had before.
	ImbalanceFactor float64 `hcl:"imbalance_factor"`
	ImbalanceSlack  int64   `hcl:"imbalance_slack"`
	// Remember is how long a model without engines gets 503 and not 404, and
	// how long the metrics and the highest token of a gone replica are kept.
	Remember time.Duration `hcl:"remember"`
}

// Queue is what holds requests for which no engine is free.
type Queue struct {
	// Length is how many requests of one model may wait. One more is refused with 429.
	Length int64 `hcl:"length"`
	// Aging is how long a request waits until it counts one priority more.
	Aging time.Duration `hcl:"aging"`
	// Wait is how long a request waits at most, unless its client says less.
	Wait time.Duration `hcl:"wait"`
	// Restart is the same for a model that no controller brings up: its engines are
	// waited for as long as a failover or a restart takes.
	Restart time.Duration `hcl:"restart"`
	// CommentAfter is after how long a client that asked for a stream gets the first comment
	// with its place in the queue. The status of the answer is 200 from then on: a later
	// failure is an event of the stream.
	CommentAfter time.Duration `hcl:"comment_after"`
	// CommentEvery is the time between two such comments.
	CommentEvery time.Duration `hcl:"comment_every"`
}

// Retries say what is done about a request that an engine failed before the first byte.
type Retries struct {
	// Attempts is how many engines may take one request and fail it. With 1 nothing is
	// ever tried again.
	Attempts int64 `hcl:"attempts"`
	// BudgetRatio is how many retries a model may have for each request of the last
	// BudgetWindow. Further retries wait.
	BudgetRatio float64 `hcl:"budget_ratio"`
	// BudgetFloor is how many retries per second a model may have in any case.
	BudgetFloor float64 `hcl:"budget_floor"`
	// BudgetWindow is the time over which requests count for BudgetRatio.
	BudgetWindow time.Duration `hcl:"budget_window"`
}

// AccessLog is a line for each request.
type AccessLog struct {
	// Path is a file, "-" the standard output. Empty means that there is none.
	Path string `hcl:"path"`
}

// Tracing exports spans.
type Tracing struct {
	// Endpoint is the URL of an OTLP/HTTP receiver, as "http://127.0.0.1:4318". Empty
	// means that trace headers are only passed on.
	Endpoint string `hcl:"endpoint"`
	// Ratio is the share of requests that are traced. A client whose traceparent says
	// "not sampled" is not traced; one that says "sampled" gets no more than the ratio.
	Ratio float64 `hcl:"ratio"`
}

// DefaultConfig returns settings for one gateway next to a local Consul agent.
func DefaultConfig() Config {
	return Config{
		// Loopback: opening a port to the network is the operator's decision.
		Listen: "127.0.0.1:8080",
		// Beside the controller's 4750 and 4751.
		OperatorListen: "127.0.0.1:4752",
		LogLevel:       "info",
		// About what Nomad needs to restart an engine in place.
		RetryAfter: 5 * time.Second,
		Consul:     Consul{Service: "remuda-gateway"},
		Timeouts: Timeouts{
			// A header is one or two packets; ten seconds survive a lossy link.
			Header: 10 * time.Second,
			// 32 MiB in a minute is 4.5 Mbit/s, a slow uplink.
			Body: time.Minute,
			// Longer than the 60 s at which common load balancers give up, so
			// that they and not we close an idle connection.
			KeepAlive: 2 * time.Minute,
			// The client's kernel buffers fill only when nobody reads at all.
			Write: 30 * time.Second,
			// One lost SYN is repeated after 1 s; the second loss means trouble.
			Connect: 2 * time.Second,
			// The timeout of OpenAI's own client. An answer that is not
			// streamed has its first byte only when all of it is generated.
			FirstByte: 10 * time.Minute,
			// Longer than an engine needs to preempt a sequence and recompute a
			// long context.
			StreamIdle: 2 * time.Minute,
			// vLLM closes idle connections after 5 s
			// (VLLM_HTTP_TIMEOUT_KEEP_ALIVE): be first, so that no request
			// meets a connection that is just being closed.
			EngineIdle: 4 * time.Second,
			// Only useful behind a load balancer that polls /ready.
			LameDuck: 0,
			// Nomad's default kill_timeout is 5 s and its usual maximum 30 s.
			Drain: 25 * time.Second,
		},
		// A name of its own, so that no certificate for another purpose is taken for an engine's.
		EngineTLS: EngineTLS{ServerName: "engine.remuda"},
		Limits: Limits{
			// A context of a million tokens is about 4 MiB; images come as
			// base64 and are larger.
			Body: 32 << 20,
			// Room for large cookies and tokens; net/http would allow 1 MiB.
			Header: 64 << 10,
			// 6 of the largest bodies, or thousands of usual ones. With what else a request
			// holds, it fits the 512 MiB of the shipped job.
			Buffered: 192 << 20,
		},
		Routing: Routing{
			// Longer than the interval at which shims push their TTL checks.
			Grace: 15 * time.Second,
			// Long enough to skip a dead engine until its check is critical.
			Suspect: 2 * time.Second,
			// A broken engine that Consul still vouches for costs a request every half
			// a minute.
			SuspectMax: 30 * time.Second,
			// A cached prefix saves its prefill, which is cheap beside waiting behind
			// the work of others: half as much again, and two thousand tokens.
			ImbalanceFactor: 1.5,
			ImbalanceSlack:  2048,
			// A model that comes back within it was restarted, not removed.
			Remember: 15 * time.Minute,
		},
		Queue: Queue{
			// Beyond that a client is better off elsewhere.
			Length: 1024,
			// Nobody waits minutes behind others only because they are more important.
			Aging: 30 * time.Second,
			// A large model needs one to two minutes from disk; twice that and some.
			Wait: 5 * time.Minute,
			// Nomad restarts a task within 15 s by default, and a failover takes less.
			Restart: 30 * time.Second,
			// Most waits are over by then, and keep their proper status.
			CommentAfter: 2 * time.Second,
			// Well below the 60 s after which proxies cut a silent connection.
			CommentEvery: 10 * time.Second,
		},
		Retries: Retries{
			// A request that has felled three engines is the fault itself.
			Attempts: 3,
			// As Finagle and Envoy do: a fifth more load at most, and enough for a
			// model of few requests.
			BudgetRatio:  0.2,
			BudgetFloor:  10,
			BudgetWindow: 10 * time.Second,
		},
		Keys:    Keys{Default: DefaultKeyLimit()},
		Tracing: Tracing{Ratio: 0.01},
	}
}

// maxBody is the most that limits.body may allow: a body is held in one piece.
const maxBody = 1 << 30

// settingProblems checks what a config file can say.
func (c *Config) settingProblems() hclfault.Problems {
	var out hclfault.Problems
	bad, blame := out.Add, out.Blame
	for _, a := range []struct{ field, value string }{{"listen", c.Listen}, {"operator_listen", c.OperatorListen}} {
		if _, _, err := net.SplitHostPort(a.value); err != nil {
			bad(a.field, `is %q: must be "host:port"`, a.value)
		}
	}
	if c.Advertise != "" && (!serverURL(c.Advertise) || strings.HasSuffix(c.Advertise, "/")) {
		bad("advertise", `is %q: must be a URL such as "https://llm.example.com"`, c.Advertise)
	}
	if hclog.LevelFromString(c.LogLevel) == hclog.NoLevel {
		bad("log_level", "is %q: must be trace, debug, info, warn or error", c.LogLevel)
	}
	for _, d := range []struct {
		field  string
		value  time.Duration
		zeroOK bool
	}{
		{"retry_after", c.RetryAfter, false},
		{"timeouts.header", c.Timeouts.Header, false},
		{"timeouts.body", c.Timeouts.Body, false},
		{"timeouts.keep_alive", c.Timeouts.KeepAlive, false},
		{"timeouts.write", c.Timeouts.Write, false},
		{"timeouts.connect", c.Timeouts.Connect, false},
		{"timeouts.first_byte", c.Timeouts.FirstByte, false},
		{"timeouts.stream_idle", c.Timeouts.StreamIdle, false},
		{"timeouts.engine_idle", c.Timeouts.EngineIdle, false},
		{"timeouts.lame_duck", c.Timeouts.LameDuck, true},
		{"timeouts.drain", c.Timeouts.Drain, true},
		{"routing.grace", c.Routing.Grace, true},
		{"routing.suspect", c.Routing.Suspect, false},
		{"routing.suspect_max", c.Routing.SuspectMax, false},
		{"queue.aging", c.Queue.Aging, false},
		{"queue.wait", c.Queue.Wait, false},
		{"queue.restart", c.Queue.Restart, false},
		{"queue.comment_after", c.Queue.CommentAfter, false},
		{"queue.comment_every", c.Queue.CommentEvery, false},
		{"retries.budget_window", c.Retries.BudgetWindow, false},
		{"routing.remember", c.Routing.Remember, true},
	} {
		switch {
		case d.value < 0:
			bad(d.field, "is %s: must be 0 or more", d.value)
		case d.value == 0 && !d.zeroOK:
			bad(d.field, "is 0: must be more than 0, because every wait needs a limit")
		}
	}
	for _, a := range c.Controller.Addresses {
		if !serverURL(a) {
			bad("controller.addresses", `contains %q: must be a URL such as "http://127.0.0.1:4750"`, a)
		}
	}
	if strings.ContainsAny(c.Controller.Token, "\r\n\x00") {
		bad("controller.token", "contains a line break or NUL: must be the secret of a token")
	}
	if len(c.Controller.Addresses) == 0 && (c.Controller.Token != "" || c.Controller.CACert != "") {
		bad("controller.addresses", `is empty: must be set, because controller.token or controller.ca_cert is set`)
		blame("controller.token", "controller.ca_cert")
	}
	if c.Limits.Body < 1 || c.Limits.Body > maxBody {
		bad("limits.body", "is %d bytes: must be 1 to 1GiB", c.Limits.Body)
	}
	if c.Limits.Header < 1<<10 || c.Limits.Header > 16<<20 {
		bad("limits.header", "is %d bytes: must be 1KiB to 16MiB", c.Limits.Header)
	}
	if c.Limits.Buffered < c.Limits.Body {
		bad("limits.buffered", "is %d bytes: must be at least limits.body, which is %d", c.Limits.Buffered, c.Limits.Body)
		blame("limits.body")
	}
	if c.Routing.SuspectMax < c.Routing.Suspect {
		bad("routing.suspect_max", "is %s: must be at least routing.suspect, which is %s", c.Routing.SuspectMax, c.Routing.Suspect)
		blame("routing.suspect")
	}
	if f := c.Routing.ImbalanceFactor; !(f >= 1) || math.IsInf(f, 0) {
		bad("routing.imbalance_factor", "is %v: must be 1 or more", f)
	}
	if c.Routing.ImbalanceSlack < 0 {
		bad("routing.imbalance_slack", "is %d tokens: must be 0 or more", c.Routing.ImbalanceSlack)
	}
	if n := c.Queue.Length; n < 1 || n > dispatch.MaxQueue {
		bad("queue.length", "is %d: must be 1 to %d", n, dispatch.MaxQueue)
	}
	if c.Retries.Attempts < 1 {
		bad("retries.attempts", "is %d: must be at least 1", c.Retries.Attempts)
	}
	for _, f := range []struct {
		field string
		value float64
	}{{"retries.budget_ratio", c.Retries.BudgetRatio}, {"retries.budget_floor", c.Retries.BudgetFloor}} {
		if !(f.value >= 0) || math.IsInf(f.value, 0) {
			bad(f.field, "is %v: must be 0 or more", f.value)
		}
	}
	if c.Tracing.Endpoint != "" && !serverURL(c.Tracing.Endpoint) {
		bad("tracing.endpoint", `is %q: must be a URL such as "http://127.0.0.1:4318"`, c.Tracing.Endpoint)
	}
	if r := c.Tracing.Ratio; !(r >= 0 && r <= 1) {
		bad("tracing.ratio", "is %v: must be 0 to 1", r)
	}
	for _, o := range c.CORS.Origins {
		if o != "*" && (!serverURL(o) || strings.HasSuffix(o, "/")) {
			bad("cors.origins", `contains %q: must be an origin such as "https://chat.example.com", or "*"`, o)
		}
	}
	if (c.TLS.Cert == "") != (c.TLS.Key == "") {
		bad("tls", "has only one of cert and key: set both, or leave the block out to serve without TLS")
		blame("tls.cert", "tls.key")
	}
	if c.EngineTLS.ServerName == "" {
		bad("engine_tls.server_name", "is empty: must be the DNS name that the certificates of engines bear")
	}
	return append(out, c.keyProblems()...)
}

// serverURL tells whether a is a scheme, a host and a port, and nothing more.
func serverURL(a string) bool {
	u, err := url.Parse(a)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" &&
		strings.Trim(u.Path, "/") == "" && u.RawQuery == "" && u.Fragment == "" && u.User == nil
}

// validate names every bad field at once.
func (c *Config) validate() error {
	problems := c.settingProblems()
	if c.Watcher == nil {
		problems.Add("Watcher", "is nil: must be a source of engines")
	}
	return problems.Err("invalid gateway config")
}
