package api

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-cleanhttp"
)

// Environment that Config falls back to, as NOMAD_ADDR and friends.
const (
	EnvAddress    = "REMUDA_ADDR"        // the URLs of controllers, separated by commas
	EnvToken      = "REMUDA_TOKEN"       // the secret of an ACL token of the controller
	EnvCACert     = "REMUDA_CACERT"      // a PEM file of the authority that signed the controllers' certificates
	EnvClientCert = "REMUDA_CLIENT_CERT" // a PEM file of the client's certificate, where the controllers ask for one
	EnvClientKey  = "REMUDA_CLIENT_KEY"  // a PEM file of the key of the client's certificate
)

// DefaultAddress is where a server on this machine answers.
const DefaultAddress = "http://127.0.0.1:4750"

// slack is what a request may take beyond the time that it waits for a change.
const slack = 30 * time.Second

// Config says how to reach the controller. What is empty comes from the environment.
type Config struct {
	// Addresses are URLs of servers, as "https://controller.example:4750"; any of them
	// will do. Empty: REMUDA_ADDR, and without that DefaultAddress.
	Addresses []string
	// Token is the secret of an ACL token. Empty: REMUDA_TOKEN.
	Token string
	// CACert is a PEM file of the authority that signed the servers' certificates,
	// ClientCert and ClientKey are PEM files of the client's own. Empty: REMUDA_CACERT,
	// REMUDA_CLIENT_CERT and REMUDA_CLIENT_KEY.
	CACert, ClientCert, ClientKey string
	// HTTPClient, nil: one that is made from the above. Its timeout must be longer than
	// blocking queries wait.
	HTTPClient *http.Client
	// UserAgent is sent with each request, empty: Go's own.
	UserAgent string
	// Timeout bounds a call that does not wait for a change; 0: 60 seconds, which is
	// above what a server waits for a leader and for Nomad.
	Timeout time.Duration
}

// Client calls the API. Its methods may be called from several goroutines at once.
type Client struct {
	addresses []*url.URL
	token     string
	userAgent string
	http      *http.Client
	timeout   time.Duration
	// current is the address that answered last.
	current atomic.Int64
}

// NewClient checks cfg; it talks to nobody.
func NewClient(cfg Config) (*Client, error) {
	var errs []error
	c := &Client{token: or(cfg.Token, EnvToken), userAgent: cfg.UserAgent, http: cfg.HTTPClient, timeout: cfg.Timeout}
	if c.timeout < 0 {
		errs = append(errs, fmt.Errorf("timeout is %s: must not be negative", c.timeout))
	}
	if c.timeout == 0 {
		c.timeout = 60 * time.Second
	}
	if strings.ContainsAny(c.token, "\r\n\x00") {
		errs = append(errs, errors.New("the token contains a line break or a NUL byte"))
	}
	addresses := cfg.Addresses
	if len(addresses) == 0 {
		addresses = strings.Split(or("", EnvAddress, DefaultAddress), ",")
	}
	for _, a := range addresses {
		u, err := parseAddress(strings.TrimSpace(a))
		errs = append(errs, err)
		c.addresses = append(c.addresses, u)
	}
	if c.http == nil {
		t := cleanhttp.DefaultPooledTransport()
		t.MaxIdleConnsPerHost = 16 // a gateway's watch and reports, and a CLI's parallel queries
		var err error
		t.TLSClientConfig, err = clientTLS(or(cfg.CACert, EnvCACert), or(cfg.ClientCert, EnvClientCert), or(cfg.ClientKey, EnvClientKey))
		errs = append(errs, err)
		// A server passes requests on by itself. Who redirects is another, and the token is
		// not for whoever it names.
		c.http = &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("controller client: %w", err)
	}
	return c, nil
}

// Addresses are the URLs of the servers.
func (c *Client) Addresses() []string {
	var all []string
	for _, a := range c.addresses {
		all = append(all, a.String())
	}
	return all
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// or returns the first that is set: value, the environment's, or the default.
func or(value, env string, defaults ...string) string {
	if value == "" && env != "" {
		value = os.Getenv(env)
	}
	for _, d := range defaults {
		if value == "" {
			value = d
		}
	}
	return value
}

func parseAddress(a string) (*url.URL, error) {
	if !strings.Contains(a, "://") {
		a = "http://" + a
	}
	u, err := url.Parse(a)
	if err != nil {
		return nil, fmt.Errorf("address: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("address is %q: must be a URL, such as \"https://controller.example:4750\"", a)
	}
	if strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return nil, fmt.Errorf("address is %q: must be a scheme, a host and a port only", u.Redacted())
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host}, nil
}

func clientTLS(ca, cert, key string) (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, fmt.Errorf("CA certificate: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("CA certificate: %s contains no PEM certificate", ca)
		}
	}
	if (cert == "") != (key == "") {
		return nil, errors.New("client certificate and key must be set together")
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("client certificate: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

// call is one request.
type call struct {
	method, path string
	params       url.Values
	query        QueryOptions
	// body is JSON; stream is sent as it is, once.
	body   any
	stream io.Reader
	// endless: bounded only by the caller's context.
	endless bool
	// also is a status above 299 whose body is an answer too.
	also int
}

// send makes a call and returns the answer, whose status is fine. The caller closes it.
func (c *Client) send(ctx context.Context, q call) (*http.Response, error) {
	params := url.Values{}
	for k, v := range q.params {
		params[k] = v
	}
	q.query.set(params)
	var payload []byte
	if q.body != nil {
		var err error
		if payload, err = json.Marshal(q.body); err != nil {
			return nil, c.failed(q.method, q.path, err)
		}
	}
	cancel := context.CancelFunc(func() {})
	if !q.endless {
		limit := c.timeout
		if q.query.Index > 0 {
			wait := q.query.Wait
			if wait == 0 {
				wait = DefaultWait
			}
			limit = min(wait, MaxWait)*17/16 + slack
		}
		ctx, cancel = context.WithTimeout(ctx, limit)
	}
	resp, err := c.attempt(ctx, q, params, payload)
	if err != nil {
		cancel()
		return nil, c.failed(q.method, q.path, err)
	}
	resp.Body = &closer{ReadCloser: resp.Body, then: cancel}
	if resp.StatusCode > 299 && resp.StatusCode != q.also {
		defer resp.Body.Close()
		return nil, responseError(resp)
	}
	return resp, nil
}

// patience is the least time that a server has to answer a read before the next is
// asked: longer than one waits for a leader.
const patience = 7 * time.Second

// attempt asks one server after the other, as far as that is safe. One that did not
// answer is not the first to be asked next time.
func (c *Client) attempt(ctx context.Context, q call, params url.Values, payload []byte) (*http.Response, error) {
	first := int(c.current.Load())
	var errs []error
	for i := range c.addresses {
		at := (first + i) % len(c.addresses)
		part, cancel := ctx, context.CancelFunc(func() {})
		if deadline, ok := ctx.Deadline(); ok && q.method == http.MethodGet && q.query.Index == 0 && !q.endless {
			part, cancel = context.WithTimeout(ctx, max(time.Until(deadline)/time.Duration(len(c.addresses)-i), patience))
		}
		resp, err := c.once(part, c.addresses[at], q, params, payload)
		if err == nil {
			c.current.Store(int64(at))
			resp.Body = &closer{ReadCloser: resp.Body, then: cancel}
			return resp, nil
		}
		cancel()
		errs = append(errs, err)
		if !errors.Is(err, context.Canceled) {
			c.current.Store(int64((at + 1) % len(c.addresses)))
		}
		if ctx.Err() != nil || !again(q, err) {
			break
		}
	}
	return nil, errors.Join(errs...)
}

// again tells whether another server may be asked after err.
func again(q call, err error) bool {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return true // Nothing was sent.
	}
	return q.method == http.MethodGet
}

func (c *Client) once(ctx context.Context, at *url.URL, q call, params url.Values, payload []byte) (*http.Response, error) {
	body := q.stream
	if payload != nil {
		body = bytes.NewReader(payload)
	}
	if body != nil && q.stream != nil {
		body = struct{ io.Reader }{body} // The transport must not close the caller's.
	}
	req, err := http.NewRequestWithContext(ctx, q.method, at.String()+q.path, body)
	if err != nil {
		return nil, err
	}
	req.URL.RawQuery = params.Encode()
	if payload != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.userAgent != "" {
		req.Header.Set("User-Agent", c.userAgent)
	}
	if c.token != "" {
		req.Header.Set(HeaderToken, c.token)
	}
	return c.http.Do(req)
}

// failed says which call an error is of.
func (c *Client) failed(method, path string, err error) error {
	if errors.Is(err, http.ErrSchemeMismatch) {
		return fmt.Errorf("controller: %w: the server speaks plain HTTP: use an address that begins with http://", err)
	}
	var u *url.Error
	if errors.As(err, &u) {
		return fmt.Errorf("controller: %w", err) // It names both.
	}
	return fmt.Errorf("controller: %s %s: %w", method, path, err)
}

// closer ends a call's context when its answer was read.
type closer struct {
	io.ReadCloser
	then func()
}

func (c *closer) Close() error {
	defer c.then()
	return c.ReadCloser.Close()
}

func read[T any](ctx context.Context, c *Client, path string, params url.Values, q QueryOptions) (T, QueryMeta, error) {
	return do[T](ctx, c, call{method: http.MethodGet, path: path, params: params, query: q})
}

func write[T any](ctx context.Context, c *Client, method, path string, params url.Values, body any) (T, error) {
	v, _, err := do[T](ctx, c, call{method: method, path: path, params: params, body: body})
	return v, err
}

// do makes a call and reads its answer to the end.
func do[T any](ctx context.Context, c *Client, q call) (T, QueryMeta, error) {
	var v T
	resp, err := c.send(ctx, q)
	if err != nil {
		return v, QueryMeta{}, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil {
		return v, QueryMeta{}, c.failed(q.method, q.path, fmt.Errorf("%s did not respond as a controller does: is it a remuda controller? (%w)", resp.Request.URL.Host, err))
	}
	// The rest is a line's end; a connection is used again only when all was read.
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return v, QueryMeta{}, c.failed(q.method, q.path, fmt.Errorf("read the response: %w", err))
	}
	return v, queryMeta(resp.Header), nil
}

func (c *Client) bytes(ctx context.Context, path string, params url.Values, q QueryOptions) ([]byte, QueryMeta, error) {
	resp, err := c.send(ctx, call{method: http.MethodGet, path: path, params: params, query: q})
	if err != nil {
		return nil, QueryMeta{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, QueryMeta{}, c.failed(http.MethodGet, path, err)
	}
	return b, queryMeta(resp.Header), nil
}
