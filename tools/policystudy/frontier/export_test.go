package frontier

// Look is look, for tests.
var Look = look
