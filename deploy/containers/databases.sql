-- Control and runtime own separate databases and never read each other's.
CREATE DATABASE saisei_control;
CREATE DATABASE saisei_runtime;
