"""HTTP requests for Workers: routes by hostname, the choice of a Version, the exchange with its context."""
