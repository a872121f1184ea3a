package ui

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/singleflight"

	"remuda/controller/api"
)

// Path is where the UI is served, with everything below it.
const Path = "/ui"

// liveWait is how long a request for the live part of a page waits for a change. With the
// script's pause between two requests it is below 1 s, because not everything that a page shows
// can be watched: what gateways report is read again each time.
const liveWait = 700 * time.Millisecond

const contentType = "text/html; charset=utf-8"

// maxForm is the longest form in bytes.
const maxForm = 16 << 10

// headerLive is the script's header: it asks for the live part alone. Its value is the index of
// the one before.
const headerLive = "X-Remuda-Live"

//go:embed pages/*.html
var pageFiles embed.FS

//go:embed static
var staticFiles embed.FS

var templates = template.Must(template.New("").Funcs(functions).ParseFS(pageFiles, "pages/*.html"))

// security are headers of every response.
var security = map[string]string{
	"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
		"form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
	"X-Content-Type-Options": "nosniff",
	"X-Frame-Options":        "DENY",
	"Referrer-Policy":        "same-origin",
	"Cache-Control":          "no-store",
	"Vary":                   "Accept-Encoding",
}

// UI serves the pages. It is safe for concurrent use.
type UI struct {
	api     http.Handler
	handler http.Handler
	// gateways sends chats to gateways. It follows no redirect and uses no proxy.
	gateways *http.Client
	// flights are the live parts that are being made.
	flights singleflight.Group
	made    madeParts
}

// New returns the UI of a server whose API is handler. gatewayCAs sign the gateways' certificates; nil
// means the system's.
func New(handler http.Handler, gatewayCAs *x509.CertPool) *UI {
	u := &UI{api: handler, gateways: &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: gatewayCAs, MinVersion: tls.VersionTLS12}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	mux := http.NewServeMux()
	for _, p := range pages {
		mux.HandleFunc("GET "+p.Path, func(w http.ResponseWriter, r *http.Request) { u.page(w, r, p) })
	}
	mux.HandleFunc("GET "+Path+"/{$}", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, Path, http.StatusSeeOther) })
	mux.HandleFunc("GET "+loginPath, u.loginPage)
	mux.HandleFunc("POST "+loginPath, u.login)
	mux.HandleFunc("POST "+logoutPath, u.logout)
	mux.HandleFunc("POST "+cordonPath, u.cordon)
	mux.HandleFunc("POST "+evictPath, u.evict)
	mux.HandleFunc("POST "+revertPath, u.revert)
	mux.HandleFunc("POST "+chatPath, u.chat)
	mux.HandleFunc("GET "+Path+"/static/{file}", static)
	mux.HandleFunc("GET "+Path+"/", func(w http.ResponseWriter, r *http.Request) {
		u.fail(w, u.visit(r), &api.Error{Status: http.StatusNotFound, Message: "There is no such page."})
	})
	u.handler = http.NewCrossOriginProtection().Handler(mux)
	return u
}

// ServeHTTP implements http.Handler.
func (u *UI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name, value := range security {
		w.Header().Set(name, value)
	}
	limit := int64(maxForm)
	if r.URL.Path == chatPath {
		limit = maxChat
	}
	r.Body = http.MaxBytesReader(w, r.Body, limit)
	u.handler.ServeHTTP(w, r)
}

func static(w http.ResponseWriter, r *http.Request) {
	http.ServeFileFS(w, r, staticFiles, "static/"+r.PathValue("file"))
}

// page is one page.
type page struct {
	// Path is without parameters; those are in the query, as names of users may contain anything.
	Path string
	// Name is that in the menu; empty: it is not in the menu.
	Name string
	// Still: the page has no live part, as a form.
	Still bool
	// Script is one beside that of the live part, empty for none.
	Script string
	// title is the heading. A loader may replace it.
	title string
	// template shows what load returns; template+"-tools", if it exists, is the part above it that stays.
	template string
	load     func(v *visit) (any, error)
	// watch waits with the cheapest read that has the index of all that the page shows: while that is
	// the same, so is the page. Nil: load waits.
	watch func(v *visit) (api.QueryMeta, error)
}

// pages are the pages. Those with a name in the menu are in its order.
var pages = []*page{
	{Path: Path, Name: "Overview", title: "Overview", template: "overview", load: loadOverview},
	{Path: modelPath, template: "model", load: loadModel},
	{Path: nodesPath, Name: "Nodes and GPUs", title: "Nodes and GPUs", template: "nodes", load: loadNodes, watch: watchNodes},
	{Path: decisionsPath, Name: "Decisions", title: "Decisions", template: "decisions", load: loadDecisions, watch: watchDecisions},
	{Path: usagePath, Name: "Keys and usage", title: "Keys and usage", template: "usage", load: loadUsage},
	{Path: serversPath, Name: "Servers", title: "Servers", template: "servers", load: loadServers},
	{Path: tryPath, Name: "Try it", title: "Try it", template: "try", Script: "chat.js", load: loadTry},
	{Path: cordonPath, title: "Cordon", template: "cordon", load: loadCordon, Still: true},
	{Path: evictPath, title: "Evict", template: "evict", load: loadEvict, Still: true},
	{Path: revertPath, title: "Revert", template: "revert", load: loadRevert, Still: true},
}

// visit is one request for a page.
type visit struct {
	api   *api.Client
	ctx   context.Context
	query url.Values
	// watch has the index that the script knows, 0 for a whole page.
	watch api.QueryOptions
	// index is what the loader's watched read returned.
	index uint64
	// live: only the live part is asked for.
	live  bool
	token string
	// gzip: the browser takes what is compressed.
	gzip bool
	// What the shell shows.
	Title string
	Menu  []*page
	Here  *page
	User  user
	// Live is the rendered live part, Tag its hash, At when it was made. Tools is the part above it.
	Live, Tools template.HTML
	Tag         string
	At          time.Time
	// Others are the URLs of the other servers, with a space between two.
	Others string
	// from is the address that was asked for.
	from string
}

// Index is the index of the live part.
func (v *visit) Index() uint64 { return v.index }

// user is the person who asks.
type user struct {
	// Role and Name are of the token, empty without one.
	Role, Name string
	// Open: the controller asks for no tokens.
	Open bool
}

// Operator reports whether the person may change something.
func (u user) Operator() bool { return u.Open || u.Role == "operator" }

func (u *UI) visit(r *http.Request) *visit {
	v := &visit{ctx: r.Context(), query: r.URL.Query(), Menu: pages, At: time.Now(), from: r.URL.RequestURI(), gzip: takesGzip(r.Header.Get("Accept-Encoding"))}
	if c, err := r.Cookie(cookieName); err == nil {
		v.token = c.Value
	}
	v.api, _ = u.client(v.token) // It is only wrong for a wrong address.
	if text := r.Header.Get(headerLive); text != "" {
		v.live = true
		v.watch.Wait = liveWait
		v.watch.Index, _ = strconv.ParseUint(text, 10, 64)
	}
	return v
}

// identify finds out who asks. It decides only what is shown: the API decides what is allowed.
func (v *visit) identify() {
	token, _, err := v.api.SelfToken(v.ctx, api.QueryOptions{Stale: true})
	var rejected *api.Error
	switch {
	case err == nil:
		v.User = user{Role: token.Role, Name: token.Name}
	case errors.As(err, &rejected) && rejected.Status == http.StatusNotFound:
		v.User.Open = true
	}
}

// others are the other servers: where the page is, too, when this one is gone. It is no error if they are not
// known.
func (v *visit) others(r *http.Request) string {
	self, err := v.api.AgentSelf(v.ctx)
	raft, _, raftErr := v.api.RaftConfiguration(v.ctx, api.QueryOptions{Stale: true})
	if err != nil || raftErr != nil {
		return ""
	}
	var out []string
	for _, s := range raft.Servers {
		if s.API == "" || s.ID == self.ID {
			continue
		}
		if !strings.Contains(s.API, "://") {
			scheme := "http://"
			if r.TLS != nil {
				scheme = "https://"
			}
			s.API = scheme + s.API
		}
		out = append(out, s.API)
	}
	return strings.Join(out, " ")
}

// unwatched waits as a read that is watched would. It is for pages whose data cannot be watched.
func (v *visit) unwatched() {
	if v.index = 1; v.watch.Index == 0 {
		return
	}
	select {
	case <-v.ctx.Done():
	case <-time.After(v.watch.Wait):
	}
}

// page answers a request for a page, or for its live part. Pages of one person that are open several
// times and know the same state wait for one read, and share what was rendered.
func (u *UI) page(w http.ResponseWriter, r *http.Request, p *page) {
	v := u.visit(r)
	v.Here, v.Title = p, p.title
	if !v.live {
		v.identify()
		v.Others = v.others(r)
		data, err := p.load(v)
		if err != nil {
			u.fail(w, v, err)
			return
		}
		u.show(w, v, http.StatusOK, p.template, data)
		return
	}
	made, _, _ := u.flights.Do(strings.Join([]string{v.token, v.from, r.Header.Get(headerLive)}, "\x00"), func() (any, error) {
		v.ctx = context.WithoutCancel(v.ctx) // Others may wait for it. The client's own limits end it.
		if p.watch != nil && v.watch.Index > 0 {
			meta, err := p.watch(v)
			if err == nil && meta.Index == v.watch.Index {
				return part{status: http.StatusNotModified, index: meta.Index}, nil
			}
			v.watch = api.QueryOptions{} // What load answers is new, or the error.
		}
		v.identify()
		data, err := p.load(v)
		if err != nil {
			return newPart(v, statusOf(err), "error", err.Error()), nil
		}
		return u.made.part(v, p.template, data), nil
	})
	switch l, ok := made.(part); {
	case ok && l.status == http.StatusUnauthorized:
		toLogin(w, v) // Browsers log a 401 as an error of the page.
	case ok:
		l.write(w, r.Header.Get("If-None-Match"), v.gzip)
	}
}

// part is a rendered live part.
type part struct {
	status int
	body   template.HTML
	// index is what the next request is to wait for, tag a hash of the body.
	index uint64
	tag   string
	// zipped is the body in gzip, nil for one that is not kept.
	zipped []byte
}

func newPart(v *visit, status int, name string, data any) part {
	body, err := render(name, shown{v, data})
	if err != nil {
		return part{status: http.StatusInternalServerError, body: template.HTML(template.HTMLEscapeString(err.Error()))} // it is escaped
	}
	sum := sha256.Sum256([]byte(body))
	return part{status: status, body: body, index: v.index, tag: `"` + hex.EncodeToString(sum[:8]) + `"`}
}

// write sends the live part alone, unless the script has it, whose tag is known.
func (l part) write(w http.ResponseWriter, known string, gzip bool) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set(api.HeaderIndex, strconv.FormatUint(l.index, 10))
	if l.status == http.StatusNotModified {
		l.tag = known
	}
	h.Set("ETag", l.tag)
	if known == l.tag && l.status < http.StatusBadRequest {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	l.send(w, gzip)
}

// send sends the body, in gzip if the browser takes it.
func (l part) send(w http.ResponseWriter, gzip bool) {
	if !gzip || l.zipped == nil {
		w.WriteHeader(l.status)
		_, _ = io.WriteString(w, string(l.body)) // A client that is gone needs no error.
		return
	}
	w.Header().Set("Content-Encoding", "gzip")
	w.WriteHeader(l.status)
	_, _ = w.Write(l.zipped)
}

// show sends a whole page.
func (u *UI) show(w http.ResponseWriter, v *visit, status int, name string, data any) {
	l := newPart(v, status, name, data)
	v.Live, v.Tag, v.At = l.body, l.tag, time.Now()
	var err error
	if templates.Lookup(name+"-tools") != nil {
		v.Tools, err = render(name+"-tools", shown{v, data})
	}
	var body template.HTML
	if err == nil {
		body, err = render("shell", shown{v, data})
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", contentType)
	part{status: l.status, body: body, zipped: zip(body)}.send(w, v.gzip)
}

// render executes a template.
func render(name string, data shown) (template.HTML, error) {
	var body bytes.Buffer
	if err := templates.ExecuteTemplate(&body, name, data); err != nil {
		return "", fmt.Errorf("render %s: %w", name, err)
	}
	return template.HTML(body.String()), nil // html/template has escaped it
}

// shown is what templates get.
type shown struct {
	*visit
	Data any
}

// statusOf is HTTP's for an error of the API.
func statusOf(err error) int {
	var rejected *api.Error
	if errors.As(err, &rejected) && rejected.Status != 0 {
		return rejected.Status
	}
	return http.StatusBadGateway
}

// fail answers a request for a page whose data could not be had. Without a good token it leads to
// the login.
func (u *UI) fail(w http.ResponseWriter, v *visit, err error) {
	status := statusOf(err)
	if status == http.StatusUnauthorized {
		toLogin(w, v)
		return
	}
	if v.Here == nil {
		v.Here = &page{Still: true}
	}
	if v.Title == "" {
		v.Title = http.StatusText(status)
	}
	u.show(w, v, status, "error", err.Error())
}

func toLogin(w http.ResponseWriter, v *visit) {
	w.Header().Set("Location", loginPath+"?from="+url.QueryEscape(v.from))
	w.WriteHeader(http.StatusSeeOther)
}
