package engine

import (
	"crypto/ecdh"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"remuda/controller/consul"
	gms "remuda/device-plugin/gms/client"
	"remuda/internal/replica"
	"remuda/lockd/client"
	"remuda/lockd/engine/dialect"
)

// The values of Config.Standby.
const (
	// StandbyNone: the engine is the only one of its replica and serves at once.
	StandbyNone = "none"
	// StandbyWarm: the engine is initialised and sleeps. It needs a sleep mode.
	StandbyWarm = "warm"
	// StandbyCold: the engine is started once it has the lock: for engines without a sleep
	// mode, which have no memory of a GPU to give back.
	StandbyCold = "cold"
)

// Config says which engine the shim runs and how it looks after it.
type Config struct {
	// Command is the engine's command line. Required.
	Command []string
	// Role is replica.RolePrimary or replica.RoleShadow. A primary goes on to
	// serve by itself; a shadow sleeps after Init and waits to be woken.
	Role string
	// Name is the replica that the engine belongs to. Required.
	Name replica.Name
	// EngineURL is where the engine will serve HTTP, e.g. http://127.0.0.1:8000.
	EngineURL string
	// Advertise is the host:port that clients should use; empty means
	// EngineURL's own.
	Advertise string
	// TLSListen is the host:port at which this process serves the engine over TLS 1.3, with the certificate
	// and key in the PEM files TLSCert and TLSKey; empty: not. Clients reach it at Advertise's host.
	TLSListen, TLSCert, TLSKey string
	// Slots is how many requests the engine works on at once; 0 asks the
	// engine and falls back to 1.
	Slots int
	// Dialect names the engine's kind: vllm, sglang, ollama or sim.
	Dialect string
	// ModelFile is the GGUF file from which the ollama dialect makes the
	// model; other dialects have no use for it.
	ModelFile string
	// Parameters are set on the model that is made from ModelFile, by name; for
	// the ollama dialect.
	Parameters dialect.Parameters
	// Lock is lockd's address, as client.Config.Addr. On a Unix socket lockd watches the
	// shim: should the shim die, it kills what is left of the engine and removes its
	// registration. Empty for an engine that nobody watches.
	Lock string
	// Standby says what the engine does while another engine of its failover pair may
	// have the pair's lock: StandbyWarm, or StandbyCold. StandbyNone for a single engine.
	Standby string
	// StartWarm: in a new allocation the engine loads its model and sleeps until it is woken, without
	// asking to serve first. It needs a Record.
	StartWarm bool
	// Generation is the first part of the engine's fencing tokens: see replica.Token.
	Generation uint64
	// LockTLS is for a Lock over TCP.
	LockTLS *tls.Config `json:"-"`
	// LockSessionTTL is client.Config.SessionTTL.
	LockSessionTTL time.Duration
	// LockHeartbeat is client.Config.Heartbeat: a shim that hangs for so long,
	// and then for lockd's reconnect window, is ended by lockd.
	LockHeartbeat time.Duration
	// Record is the directory of the Record, which the shims of a pair share. It is made, with
	// mode 0700, in a directory that exists. Empty: what was recorded ends with the shim.
	Record string
	// Logs is the directory in which Nomad keeps the logs of the allocation's tasks, and Task is the one
	// that this shim runs in. Empty outside Nomad: a take-over then has no last lines.
	Logs, Task string
	// UseGPUs are the GPUs that the engine is to use, and SeatGPUs those on which its
	// task has seats; see TaskGPUs. Empty where nobody says.
	UseGPUs, SeatGPUs []string
	// GMSSockets are the GPU memory services, one for each GPU, with which the engine
	// shares its weights; none where it has its own. They need Record: the
	// weights of a pair that sleeps are this process's alone.
	GMSSockets []string
	// GMSSpace makes the place in which one GPU's shared memory is mapped, and what
	// closes it; nil: host memory.
	GMSSpace func(socket string) (space gms.Space, closeSpace func() error, err error) `json:"-"`
	// Listen is the shim's own HTTP address.
	Listen string
	// Secret, or the replica's secret under ControllerKey, is what a client must send to change
	// the engine's state: see replica.Secret. With neither, clients of this machine may.
	Secret        string            `json:"-"`
	ControllerKey ed25519.PublicKey `json:"-"`
	// GatewayKey is the gateways' public key: the engine gets an API key that they can derive, if its
	// dialect has such keys; see replica.EngineKey. Nil: the engine has no key of ours.
	GatewayKey *ecdh.PublicKey `json:"-"`
	// Consul is where the engine is registered; nil registers nowhere.
	Consul *consul.Address

	// InitTimeout bounds loading the model. See DefaultConfig.
	InitTimeout time.Duration
	// WakeTimeout bounds a wake; a wake that takes longer is fatal.
	WakeTimeout time.Duration
	// DrainTimeout is how long a drain waits for running requests.
	DrainTimeout time.Duration
	// DrainHold is how long an engine that was drained stays out of routing for what is to
	// follow: a sleep, a stop, or another drain. Then it serves again.
	DrainHold time.Duration
	// DrainSettle is how long the engine must stay idle before it counts as
	// drained: requests that a router sent before it saw the deregistration
	// may still arrive, so it is more than the routers' lag.
	DrainSettle time.Duration
	// StopTimeout is how long the engine gets between SIGTERM and SIGKILL.
	StopTimeout time.Duration
	// HealthInterval is the time between health checks of an Active engine,
	// and HealthTimeout bounds one.
	HealthInterval time.Duration
	HealthTimeout  time.Duration
	// UnhealthyAfter failed checks in a row take the engine out of routing.
	UnhealthyAfter int
	// HangTimeout is how long an engine may fail its health checks, or have requests and do
	// no work on them, before the shim ends it and itself, so that the engine's standby takes
	// over or it is restarted. See HangTimeout, the function, for its default. It must be
	// longer than the longest step of the engine: see dialect.Usage.
	HangTimeout time.Duration
	// TTL is the Consul check's time to live.
	TTL time.Duration
	// WatchParent ends the shim when its parent dies. Under Nomad the parent
	// is the task's executor, without which nobody can stop the task.
	WatchParent bool

	Logger hclog.Logger
}

// DefaultConfig has the reasons beside the numbers.
func DefaultConfig() Config {
	lock := client.DefaultConfig()
	return Config{
		LockSessionTTL: lock.SessionTTL,
		LockHeartbeat:  5 * time.Second, // no scheduler lets a process wait for so long
		Role:           replica.RolePrimary,
		Standby:        StandbyNone,
		Dialect:        "vllm",
		Listen:         "127.0.0.1:0",
		InitTimeout:    2 * time.Hour,          // for a 400 GB model on a slow disk
		WakeTimeout:    60 * time.Second,       // the slowest wake on record took 5.5 s (235B on 4 GPUs)
		DrainTimeout:   30 * time.Second,       // most chat answers end within it
		DrainHold:      15 * time.Second,       // a controller's election and its order to Nomad take less
		DrainSettle:    250 * time.Millisecond, // a Consul watch delivers in milliseconds
		StopTimeout:    5 * time.Second,        // as Nomad's own kill_timeout
		HealthInterval: time.Second,
		HealthTimeout:  2 * time.Second,
		UnhealthyAfter: 3,
		HangTimeout:    HangTimeout(StandbyNone),
		TTL:            5 * time.Second,
		Logger:         hclog.NewNullLogger(),
	}
}

// HangTimeout is the default of Config.HangTimeout. A warm standby takes over in well under a
// second, so an engine that has one is given up soon. Otherwise a false alarm costs a load of
// the model, which may take an hour.
func HangTimeout(standby string) time.Duration {
	if standby == StandbyWarm {
		return 5 * time.Second // some steps of any engine: a chunk of a prefill takes up to a second or two
	}
	return 30 * time.Second
}

func (c Config) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(c.Command) == 0 || c.Command[0] == "" {
		bad("command is empty: must be the engine's command, after --")
	}
	if c.Role != replica.RolePrimary && c.Role != replica.RoleShadow {
		bad("role is %q: must be primary or shadow", c.Role)
	}
	switch c.Standby {
	case StandbyNone:
	case StandbyWarm, StandbyCold:
		if c.Lock == "" {
			bad("standby is %s and lock is empty: lockd grants the lock that decides which engine serves: set lock too", c.Standby)
		}
	default:
		bad("standby is %q: must be none, warm or cold", c.Standby)
	}
	if c.remoteLock() && c.Standby == StandbyNone {
		bad("lock is %q: a single engine needs the lockd of its own node: must be the path of its socket", c.Lock)
	}
	if _, err := replica.ParseName(c.Name.String()); err != nil {
		bad("group: %w", err)
	}
	if _, err := c.endpoint(); err != nil {
		errs = append(errs, err)
	}
	if len(c.GMSSockets) > 0 && c.Record == "" {
		bad("gms-socket is set and record is empty: set record too, so that the weights' location survives a crash")
	}
	if c.StartWarm && c.Record == "" {
		bad("$%s is %s and record is empty: set record too, so that an engine that was woken is woken again after a crash", EnvStart, Warm)
	}
	if c.Slots < 0 {
		bad("slots is %d: must be 0 (read from the engine) or more", c.Slots)
	}
	for _, d := range []struct {
		name string
		v    time.Duration
	}{
		{"init-timeout", c.InitTimeout}, {"wake-timeout", c.WakeTimeout}, {"drain-timeout", c.DrainTimeout}, {"drain-hold", c.DrainHold},
		{"stop-timeout", c.StopTimeout}, {"health-interval", c.HealthInterval}, {"health-timeout", c.HealthTimeout},
		{"hang-timeout", c.HangTimeout},
	} {
		if d.v <= 0 {
			bad("%s is %s: must be more than 0", d.name, d.v)
		}
	}
	if c.TTL < time.Second {
		bad("ttl is %s: must be at least 1s", c.TTL)
	}
	if c.DrainSettle < 0 {
		bad("drain-settle is %s: must be 0 or more", c.DrainSettle)
	}
	if c.UnhealthyAfter < 1 {
		bad("unhealthy-after is %d: must be at least 1", c.UnhealthyAfter)
	}
	if c.Logger == nil {
		bad("logger must be set")
	}
	return errors.Join(errs...)
}

// remoteLock reports whether lockd is reached over TCP, from where it sees no process.
func (c Config) remoteLock() bool { return strings.HasPrefix(c.Lock, "tcp://") }

// endpoint is the address that is advertised, as an engine without token.
func (c Config) endpoint() (replica.Engine, error) {
	e := replica.Engine{Name: c.Name, Role: c.Role, Slots: c.Slots}
	addr := c.Advertise
	what := "advertise"
	u, err := url.Parse(c.EngineURL)
	if err != nil || u.Scheme != "http" || u.Host == "" || u.Port() == "" {
		return e, fmt.Errorf("engine-url is %q: must be http://host:port", c.EngineURL)
	}
	if addr == "" {
		addr, what = u.Host, "engine-url"
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return e, fmt.Errorf("%s is %q: must be host:port: %w", what, addr, err)
	}
	e.Port, err = strconv.Atoi(port)
	if err != nil || e.Port < 1 || e.Port > 65535 {
		return e, fmt.Errorf("%s is %q: the port must be 1 to 65535", what, addr)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return e, fmt.Errorf("%s is %q: clients cannot connect to that host: set -advertise to host:port", what, addr)
	}
	e.Address = host
	if c.TLSListen == "" && c.TLSCert == "" && c.TLSKey == "" {
		return e, nil
	}
	if c.TLSCert == "" || c.TLSKey == "" {
		return e, errors.New("tls-listen, tls-cert and tls-key must be set together")
	}
	_, port, err = net.SplitHostPort(c.TLSListen)
	if err == nil {
		e.TLSPort, err = strconv.Atoi(port)
	}
	if err != nil || e.TLSPort < 1 || e.TLSPort > 65535 {
		return e, fmt.Errorf("tls-listen is %q: must be host:port", c.TLSListen)
	}
	return e, nil
}
