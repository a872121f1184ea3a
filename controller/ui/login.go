package ui

import (
	"errors"
	"net/http"
	"net/url"
	"path"
	"strings"

	"remuda/controller/api"
)

const (
	loginPath  = Path + "/login"
	logoutPath = Path + "/logout"
	// cookieName is the cookie with the secret of an ACL token.
	cookieName = "remuda_token"
	// maxToken is longer than any secret of a token.
	maxToken = 256
)

// loginData is what the form for a token shows.
type loginData struct {
	// From is the page to return to, Message why the token is asked for again.
	From, Message string
}

// cookie has the secret of a token; an empty one deletes it.
func cookie(r *http.Request, secret string) *http.Cookie {
	c := &http.Cookie{Name: cookieName, Value: secret, Path: Path, HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode}
	if secret == "" {
		c.MaxAge = -1
	}
	return c
}

// loginPage shows the form. A person whose token is good goes on.
func (u *UI) loginPage(w http.ResponseWriter, r *http.Request) {
	v := u.visit(r)
	from := returnTo(r.URL.Query().Get("from"))
	message := ""
	_, _, err := v.api.SelfToken(v.ctx, api.QueryOptions{})
	var rejected *api.Error
	switch {
	case err == nil, errors.As(err, &rejected) && rejected.Status == http.StatusNotFound:
		http.Redirect(w, r, from, http.StatusSeeOther)
		return
	case !errors.As(err, &rejected) || rejected.Status != http.StatusUnauthorized:
		message = err.Error()
	case v.token != "":
		message = "Your token is not valid any more: it was deleted. Log in with another one."
		http.SetCookie(w, cookie(r, ""))
	}
	u.loginForm(w, v, http.StatusOK, loginData{from, message})
}

func (u *UI) loginForm(w http.ResponseWriter, v *visit, status int, data loginData) {
	v.Here, v.Title, v.Menu = &page{Still: true}, "Log in", nil
	u.show(w, v, status, "login", data)
}

// login takes a token, and keeps it in a cookie if the API knows it.
func (u *UI) login(w http.ResponseWriter, r *http.Request) {
	v := u.visit(r)
	secret := strings.TrimSpace(r.PostFormValue("token"))
	data := loginData{From: returnTo(r.PostFormValue("from"))}
	if secret == "" || len(secret) > maxToken || strings.ContainsFunc(secret, func(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune(`";,\`, c) }) {
		data.Message = "This is not the secret of an ACL token: it looks like 3f1c2b7e-0000-4000-8000-1234567890ab."
		u.loginForm(w, v, http.StatusBadRequest, data)
		return
	}
	c, err := u.client(secret)
	if err == nil {
		_, _, err = c.SelfToken(v.ctx, api.QueryOptions{})
	}
	var rejected *api.Error
	switch {
	case err == nil:
		http.SetCookie(w, cookie(r, secret))
		http.Redirect(w, r, data.From, http.StatusSeeOther)
		return
	case errors.As(err, &rejected) && rejected.Status == http.StatusNotFound:
		http.Redirect(w, r, data.From, http.StatusSeeOther) // No tokens are asked for.
		return
	case errors.As(err, &rejected) && rejected.Status == http.StatusUnauthorized:
		data.Message = "The controller does not know this token: it may have been deleted. The secret is shown once, when a token is created."
		u.loginForm(w, v, http.StatusUnauthorized, data)
		return
	}
	data.Message = err.Error()
	u.loginForm(w, v, http.StatusServiceUnavailable, data)
}

func (u *UI) logout(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, cookie(r, ""))
	http.Redirect(w, r, loginPath, http.StatusSeeOther)
}

// returnTo is the page to go to after the login: one of the UI, whatever a link says.
func returnTo(from string) string {
	at, err := url.Parse(from)
	if err != nil || at.Host != "" || at.Scheme != "" || at.Path != path.Clean(at.Path) || at.Path != Path && !strings.HasPrefix(at.Path, Path+"/") || at.Path == loginPath {
		return Path
	}
	return at.RequestURI()
}
